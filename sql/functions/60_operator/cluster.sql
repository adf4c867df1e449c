-- The state is of one Kafka cluster: offsets of another mean other records. Its id is written down at first contact; after
-- that another cluster is refused, until the owner says that it is the same one by another id.

-- The broker that was asked is of this cluster. The first to say so who may speak for others binds the state to it; from
-- then on every other cluster is refused, with INCONSISTENT_CLUSTER_ID.
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
