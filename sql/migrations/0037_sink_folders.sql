-- Which group a sink's folder belongs to. A file in the folder said so, which two groups could write at the same moment.
create table sharequeue.sink_folders (
    folder text not null,
    group_id text not null,
    constraint sink_folders_pkey primary key (folder)
);
insert into sharequeue.sink_folders (folder, group_id)
select distinct on (folder) folder, group_id
from (
    select substring(location from '^(?:sink:pending:)?(.+)/(?:leases?|compacted)=[^/]+(?:/[^/]*)?$') as folder, group_id, acknowledged_at,
        lease_id
    from sharequeue.lease_outputs
) as o
where octet_length(folder) <= 2000
order by folder, acknowledged_at, lease_id;

