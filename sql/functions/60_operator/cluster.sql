-- The state belongs to one Kafka cluster: the offsets of another one are other records. The cluster's id is stored at first
-- contact. After that another cluster is refused, until the owner says that it is the same one under a new id.

-- Checks that the broker's cluster is the one that the state belongs to; refuses any other with INCONSISTENT_CLUSTER_ID. The
-- first call of a trusted role binds the state to its cluster.
create or replace function sharequeue.check_cluster(p_cluster_id text) returns void
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_bound sharequeue.kafka_cluster;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the cluster id', p_cluster_id);
    select * into v_bound from sharequeue.kafka_cluster;
    if not found and sharequeue_internal.is_trusted() then
        insert into sharequeue.kafka_cluster (cluster_id, bound_at) values (p_cluster_id, sharequeue.clock())
        on conflict on constraint kafka_cluster_pkey do nothing;
        select * into v_bound from sharequeue.kafka_cluster;
    end if;
    if v_bound.cluster_id <> p_cluster_id then
        raise exception 'the broker is of Kafka cluster %, and the state is of cluster % since %: nothing of it is true '
            'there. Check SHAREQUEUE_BOOTSTRAP_SERVERS and SHAREQUEUE_DATABASE_URL; if it is the right cluster all the same, '
            'the schema''s owner says so by select sharequeue.rebind_cluster(''%'')', p_cluster_id, v_bound.cluster_id,
            v_bound.bound_at, p_cluster_id using errcode = 'SQ104';
    end if;
end
$$;

-- Binds the state to another cluster, whose topics have the same records at the same offsets. The owner's alone. Returns
-- which cluster it was bound to.
create or replace function sharequeue.rebind_cluster(p_cluster_id text) returns text
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_before text;
begin
    perform sharequeue_internal.check_name('the cluster id', p_cluster_id);
    select cluster_id into v_before from sharequeue.kafka_cluster for update;
    insert into sharequeue.kafka_cluster (cluster_id, bound_at) values (p_cluster_id, sharequeue.clock())
    on conflict on constraint kafka_cluster_pkey do update
        set cluster_id = excluded.cluster_id, bound_at = excluded.bound_at;
    perform sharequeue_internal.audit('rebind_cluster', null, to_jsonb(v_before), to_jsonb(p_cluster_id));
    return v_before;
end
$$;
