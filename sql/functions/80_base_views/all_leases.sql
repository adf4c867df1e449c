-- Every lease, folded or not: what leases would hold if nothing were folded.
create or replace view sharequeue.all_leases as
select lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms, acquired_at, expires_at, fan_out,
    own_lock_duration, read_committed
from sharequeue.leases
union all
select folded_lease_id, share_partition_id, folded_member_id, folded_member_epoch, folded_token,
    folded_lock_duration_ms, folded_acquired_at,
    folded_acquired_at + folded_lock_duration_ms * interval '1 millisecond', folded_fan_out, false,
    folded_read_committed
from sharequeue.share_partitions where folded_lease_id is not null;
