-- What operations are made of moves to a schema that no role may use, and one word stays for an acknowledgement. Functions
-- that triggers, views and aggregates refer to are moved, so that these go on as they are; the others are dropped here
-- and made again, some under new names, by the files of functions/.
create schema sharequeue_internal;

alter type sharequeue.answers rename to acknowledgements;

do $$
declare
    v_internal constant text[] := array[
        'absent', 'acknowledge_under_lock', 'acls_apply', 'acquire_under_lock', 'advance_log_start',
        'advance_spso', 'answer_parts', 'answered', 'answered_fetch', 'answers_fault', 'answers_from',
        'apply_answers', 'archive_available', 'audit', 'audit_group_config', 'audit_log_is_append_only',
        'authorise', 'authorise_cluster', 'authorised', 'batch_at', 'batch_fault', 'bounded_group_config',
        'cached', 'check_acl', 'check_acquire', 'check_between', 'check_group_id', 'check_many', 'check_member',
        'check_name', 'check_offsets', 'check_outputs', 'check_present', 'check_service_configs', 'check_span',
        'check_start', 'check_text', 'circuit_allows', 'circuit_answers', 'circuit_counts', 'circuit_lapse',
        'circuit_probes', 'clock_unfold', 'compile_group_settings', 'count_outcome', 'covers',
        'delete_share_partitions', 'end_cancelled', 'end_leases', 'end_leases_at', 'end_unanswered', 'fetch_fault',
        'fetch_whole_batch', 'first_failure', 'first_outside', 'first_records', 'folded_answer', 'force_part',
        'forced_plan', 'gone_topic_silence', 'group_config', 'group_configs_lock_group', 'group_settings_follow',
        'group_settings_learn_acls', 'group_settings_unfold', 'groups_learn_acls', 'held', 'in_flight_span',
        'is_folded_until_later', 'is_holder', 'is_super_user', 'is_trusted', 'join_terminal', 'joined',
        'journal_batch', 'journal_lease', 'journal_outcome', 'journal_pause', 'journal_share_partition',
        'journal_share_partition_change', 'leases_between', 'let_go_overtaken', 'lock_empty_group', 'lock_group',
        'lock_in_order', 'lock_many', 'lock_share_partition', 'max_runs', 'may_fold', 'next_available',
        'next_delivery', 'next_epoch_of_empty_group', 'next_suspects', 'not_before_fault', 'note_attempts',
        'note_outage', 'offsets_fault', 'offsets_from', 'offsets_of', 'open_circuit', 'outage_margin',
        'outlast_outage', 'outputs_fault', 'place', 'read_batches', 'redeliver', 'refund', 'release_of',
        'remember', 'renew_next_expiry', 'renew_offsets', 'replay_from', 'replay_offsets', 'replayed',
        'request_key', 'request_key_many', 'role_named', 'runs', 'settle_lapsed', 'share_group_named',
        'share_partition_gone', 'span', 'take', 'take_batch', 'take_fan_out', 'take_fresh', 'take_kafka', 'unfold',
        'was_away', 'without_aborted'];
    v_routine record;
begin
    for v_routine in
        select p.oid::regprocedure as signature, exists (
            select from pg_depend d where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid) as used
        from pg_proc p where p.pronamespace = to_regnamespace('sharequeue') and p.proname = any (v_internal)
    loop
        if v_routine.used then
            execute format('alter routine %s set schema sharequeue_internal', v_routine.signature);
        else
            execute format('drop routine %s', v_routine.signature);
        end if;
    end loop;
end
$$;
