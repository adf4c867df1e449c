-- The state of every offset in flight, as sets: one row per batch, or per distinct state inside an exploded one.
create or replace view sharequeue.in_flight_offsets as
select
    f.share_partition_id, f.first_offset, f.last_offset, f.offsets is not null as exploded, f.state, f.delivery_count,
    f.lease_id, f.isolate, f.not_before, f.cause,
    sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) as offsets
from sharequeue.in_flight_batches f;
