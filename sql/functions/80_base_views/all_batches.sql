-- Every row of in-flight state, folded or not: what in_flight_batches would hold if nothing were folded.
create or replace view sharequeue.all_batches as
select share_partition_id, first_offset, last_offset, part, state, delivery_count, lease_id, isolate, not_before, cause,
    offsets
from sharequeue.in_flight_batches
union all
select share_partition_id, spso, speo - 1, 0, 1::smallint, 1::smallint, folded_lease_id, null::bigint,
    null::timestamptz, null::text, null::int8multirange
from sharequeue.share_partitions where folded_lease_id is not null;
