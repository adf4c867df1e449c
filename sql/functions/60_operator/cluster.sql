-- The state belongs to one Kafka cluster, because the same offsets of another one are other records. The first call stores the
-- cluster's id. After that another cluster is refused, until the owner confirms that it is the same one with a new id.

-- Checks that the broker's cluster is the one to which the state belongs; refuses any other with INCONSISTENT_CLUSTER_ID, and
-- a copy of the state. The first call of a trusted role binds the state to its cluster.
create or replace function sharequeue.check_cluster(p_cluster_id text) returns void
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_bound sharequeue.kafka_cluster;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_name('the cluster id', p_cluster_id);
    select * into v_bound from sharequeue.kafka_cluster;
    if not found and sharequeue_internal.is_trusted() then
        insert into sharequeue.kafka_cluster (cluster_id, bound_at) values (p_cluster_id, sharequeue.clock())
        on conflict on constraint kafka_cluster_pkey do nothing;
        select * into v_bound from sharequeue.kafka_cluster;
    end if;
    if v_bound.cluster_id <> p_cluster_id then
        raise exception 'the broker belongs to Kafka cluster %, but the state to cluster % since %: its offsets are not '
            'valid there. Check SHAREQUEUE_BOOTSTRAP_SERVERS and SHAREQUEUE_DATABASE_URL. If it is the right cluster, the '
            'schema''s owner can confirm it: select sharequeue.rebind_cluster(''%'')', p_cluster_id, v_bound.cluster_id,
            v_bound.bound_at, p_cluster_id using errcode = 'SQ104';
    end if;
end
$$;

-- Binds the state to another cluster, whose topics have the same records at the same offsets. Only the owner may call it.
-- Returns the cluster to which the state was bound.
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
