-- The schema as the files of migrations/ and functions/ make it. Generated: do not edit, run
-- `sharequeue migrate --print-schema > sql/schema.sql`. Functions and views are signatures only: their text is in
-- functions/. Owners and grants are not shown: roles are settings (functions/99_permissions.sql). Partitions by
-- time are made as time passes.

CREATE SCHEMA sharequeue;

CREATE SCHEMA sharequeue_internal;

CREATE TYPE sharequeue.acknowledged AS (
	error_code smallint,
	error_message text,
	spso bigint,
	lag bigint,
	accepted bigint,
	released bigint,
	rejected bigint,
	gaps bigint,
	exhausted bigint
);

CREATE TYPE sharequeue.acknowledged_and_acquired AS (
	acknowledge_error_code smallint,
	acknowledge_error_message text,
	spso bigint,
	lag bigint,
	error_code smallint,
	error_message text,
	lease_id bigint,
	token uuid,
	state_epoch integer,
	lock_duration_ms integer,
	expires_at timestamp with time zone,
	delivery_count smallint,
	offsets int8multirange,
	isolation_level text
);

CREATE TYPE sharequeue.acknowledged_of AS (
	topic text,
	partition integer,
	token uuid,
	error_code smallint,
	error_message text,
	spso bigint,
	lag bigint,
	accepted bigint,
	released bigint,
	rejected bigint,
	gaps bigint,
	exhausted bigint
);

CREATE TYPE sharequeue.acknowledgements AS (
	accept int8multirange,
	release int8multirange,
	reject int8multirange,
	gap int8multirange,
	renew int8multirange
);

CREATE TYPE sharequeue.acquired AS (
	error_code smallint,
	error_message text,
	lease_id bigint,
	token uuid,
	state_epoch integer,
	lock_duration_ms integer,
	expires_at timestamp with time zone,
	delivery_count smallint,
	offsets int8multirange,
	isolation_level text
);

CREATE TYPE sharequeue.acquired_of AS (
	topic text,
	partition integer,
	suspects boolean,
	last_attempt boolean,
	error_code smallint,
	error_message text,
	lease_id bigint,
	token uuid,
	state_epoch integer,
	lock_duration_ms integer,
	expires_at timestamp with time zone,
	delivery_count smallint,
	offsets int8multirange,
	isolation_level text
);

CREATE TYPE sharequeue.forced AS (
	error_code smallint,
	error_message text,
	act text,
	state smallint,
	delivery_count smallint,
	member_id text,
	offsets int8multirange,
	reason text
);

CREATE TYPE sharequeue.observed_of AS (
	topic text,
	partition integer,
	status text
);

CREATE TYPE sharequeue.released_of AS (
	topic text,
	partition integer,
	token uuid,
	records bigint
);

CREATE TYPE sharequeue.renewed_of AS (
	topic text,
	partition integer,
	token uuid,
	error_code smallint,
	error_message text,
	expires_at timestamp with time zone
);

CREATE TYPE sharequeue.reset AS (
	error_code smallint,
	error_message text,
	topic text,
	partition integer,
	start_offset_before bigint,
	start_offset bigint,
	state_epoch integer
);

CREATE TYPE sharequeue.taken AS (
	delivery_counts smallint[],
	offsets int8multirange[]
);

CREATE TYPE sharequeue.taken_offsets AS (
	firsts bigint[],
	lasts bigint[],
	delivery_counts smallint[],
	records bigint,
	by_offset boolean,
	throttled boolean
);

CREATE TYPE sharequeue_internal.batches AS (
	firsts bigint[],
	lasts bigint[],
	types smallint[],
	type_counts integer[]
);

CREATE TYPE sharequeue_internal.fetch_options AS (
	lock_duration_ms integer,
	redelivery text,
	mode text,
	batch_size bigint,
	log_firsts bigint[],
	log_lasts bigint[],
	aborted int8multirange,
	leave_out int8multirange
);

CREATE TYPE sharequeue_internal.holder AS (
	member_id text,
	member_epoch integer,
	token uuid
);

CREATE FUNCTION sharequeue.acknowledge(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_accept int8multirange, p_release int8multirange, p_reject int8multirange, p_gap int8multirange, p_outputs jsonb DEFAULT '[]'::jsonb, p_renew int8multirange DEFAULT '{}'::int8multirange, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET plan_cache_mode TO 'force_generic_plan' SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue.acknowledge_and_acquire(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_max_records bigint, p_redelivery text) RETURNS SETOF sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.acknowledge_and_fetch(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[], p_max_records bigint, p_lock_duration_ms integer DEFAULT NULL::integer, p_redelivery text DEFAULT 'kafka'::text, p_mode text DEFAULT 'batch_optimized'::text, p_batch_size bigint DEFAULT NULL::bigint, p_log_firsts bigint[] DEFAULT NULL::bigint[], p_log_lasts bigint[] DEFAULT NULL::bigint[], p_aborted int8multirange DEFAULT '{}'::int8multirange, p_renew_allowed boolean DEFAULT false, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.acknowledge_batches(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[] DEFAULT NULL::integer[], p_renew_allowed boolean DEFAULT true, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.acknowledge_many(p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text, p_member_epoch integer, p_tokens uuid[], p_request_id uuid, p_accepts int8multirange[], p_releases int8multirange[], p_rejects int8multirange[], p_gaps int8multirange[], p_outputs jsonb, p_not_befores timestamp with time zone[]) RETURNS SETOF sharequeue.acknowledged_of
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET plan_cache_mode TO 'force_generic_plan' SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue.acquire(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer DEFAULT NULL::integer, p_request_id uuid DEFAULT NULL::uuid, p_redelivery text DEFAULT 'kafka'::text, p_mode text DEFAULT 'batch_optimized'::text, p_batch_size bigint DEFAULT NULL::bigint, p_log_firsts bigint[] DEFAULT NULL::bigint[], p_log_lasts bigint[] DEFAULT NULL::bigint[], p_aborted int8multirange DEFAULT '{}'::int8multirange, p_leave_out int8multirange DEFAULT '{}'::int8multirange) RETURNS SETOF sharequeue.acquired
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.acquire_many(p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer DEFAULT NULL::integer, p_request_id uuid DEFAULT NULL::uuid, p_redelivery text DEFAULT 'kafka'::text, p_mode text DEFAULT 'batch_optimized'::text, p_max_bytes bigint DEFAULT NULL::bigint, p_mean_bytes double precision[] DEFAULT NULL::double precision[], p_leave_outs int8multirange[] DEFAULT NULL::int8multirange[], p_parts integer DEFAULT 1, p_last_attempt boolean DEFAULT true) RETURNS SETOF sharequeue.acquired_of
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.add_acl(p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_name text, p_resource_type text DEFAULT 'GROUP'::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.allow_everyone_if_no_acl_found(p_allow boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.alter_offsets(p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint, p_state_epoch integer DEFAULT NULL::integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.apply_permissions() RETURNS void
    LANGUAGE plpgsql SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.assign_share_partitions(p_group_id text, p_group_epoch integer, p_member_ids text[], p_share_partition_ids bigint[]) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.assignable_share_partitions(p_group_id text) RETURNS TABLE(topic text, share_partition_id bigint)
    LANGUAGE sql STABLE SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue.assignment_of(p_group_id text, p_member_id text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue.authorized_operations(p_group_id text, p_operations text[] DEFAULT NULL::text[]) RETURNS text[]
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.authorized_topic_operations(p_topic text) RETURNS text[]
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.backlog_assignment(p_group_id text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.beat(p_longer_than interval DEFAULT NULL::interval) RETURNS interval
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.begin_compaction(p_compaction_id uuid, p_group_id text, p_sink text, p_location text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.begin_transfer(p_group_id text, p_sink text, p_claim interval) RETURNS TABLE(number bigint, locations text[], records bigint, busy boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.check_cluster(p_cluster_id text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.claim_group(p_group_id text, p_pipeline text, p_replaces text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.clear_other_journal(p_retention interval, p_limit integer DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.clock() RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER;

CREATE FUNCTION sharequeue.close_dead_letters(p_group_id text, p_topic text, p_partition integer, p_sequence bigint, p_dropped boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue.close_redrive(p_topic text, p_topic_id text, p_partition integer, p_sequence bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.commit_compaction(p_compaction_id uuid, p_replaced text[], p_records bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.commit_replacement(p_compaction_id uuid, p_replaced text[], p_counted bigint, p_lease_ids bigint[], p_records bigint[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.confirm_observations(p_topics text[], p_partitions integer[], p_topic_ids text[], p_log_starts bigint[], p_log_ends bigint[], p_last_stable_offsets bigint[]) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.create_token(p_principal text, p_secret_hash bytea, p_lifetime interval, p_note text, p_scopes text[] DEFAULT NULL::text[], OUT token_id uuid, OUT created_at timestamp with time zone, OUT expires_at timestamp with time zone) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.dead_letter_attempts(p_group_id text, p_topic text, p_partition integer, p_sequence bigint) RETURNS TABLE(lease_id bigint, member_id text, client_id text, acquired_at timestamp with time zone, offsets int8multirange, exceptions text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.delete_group(p_group_id text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.delete_offsets(p_group_id text, p_topic text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.drop_journal_partition(p_retention interval, p_limit integer DEFAULT 1000) RETURNS date
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET "TimeZone" TO 'UTC' SET lock_timeout TO '250ms';

CREATE FUNCTION sharequeue.end_service_lease(p_task text, p_token uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.end_transfer(p_group_id text, p_sink text, p_number bigint, p_location text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.expire_members(p_group_id text) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.extend_locks(p_amount interval) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.force(p_group_id text, p_topic text, p_partition integer, p_offsets int8multirange, p_act text, p_execute boolean) RETURNS SETOF sharequeue.forced
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.forget_compaction(p_compaction_id uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.give_back_room(p_least bigint DEFAULT 33554432, p_factor integer DEFAULT 4) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET lock_timeout TO '100ms';

CREATE FUNCTION sharequeue.groups_of_topics(p_topics text[]) RETURNS TABLE(group_id text, topic text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.hear_replica(p_replica_id text, p_silence interval DEFAULT NULL::interval, p_drains boolean DEFAULT false) RETURNS interval
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.heartbeat(p_group_id text, p_member_id text, p_member_epoch integer, p_rack_id text, p_subscribed_topic_names text[], p_client_id text, p_client_host text, p_max_size integer, p_session_timeout_ms integer[], p_heartbeat_interval_ms integer[], p_assignment_interval_ms integer[], p_assign boolean, p_principal text DEFAULT NULL::text, OUT member_epoch integer, OUT session_timeout_ms integer, OUT heartbeat_interval_ms integer, OUT assignment jsonb, OUT to_assign jsonb) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.hold_dead_letters(p_group_id text, p_topic text, p_partition integer, p_reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue.hold_service_lease(p_task text, p_token uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.initialize(p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint, p_state_epoch integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.journal_partitions() RETURNS TABLE(day date, name text, bytes bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.keep_alive(p_group_ids text[], p_member_ids text[], p_member_epochs integer[], p_client_ids text[], p_client_hosts text[], p_principals text[], p_session_timeout_ms integer[], p_heartbeat_interval_ms integer[]) RETURNS TABLE(place bigint, session_timeout_ms integer, heartbeat_interval_ms integer)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.keep_sink_columns(p_group_id text, p_sink text, p_known text, p_columns text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.leave_group(p_group_id text, p_member_id text, p_principal text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.make_journal_partitions(p_ahead integer DEFAULT 2) RETURNS date[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET "TimeZone" TO 'UTC' SET lock_timeout TO '250ms';

CREATE FUNCTION sharequeue.metadata_hash(p_group_id text) RETURNS text
    LANGUAGE sql STABLE SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue.needed_outputs(p_lease_ids bigint[]) RETURNS TABLE(lease_id bigint, held boolean, sink text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.note_service_work(p_replica_id text, p_watched double precision, p_swept double precision, p_journal_kept double precision, p_drained double precision) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.note_topics(p_topics text[], p_topic_ids text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.observe(p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_log_start bigint, p_log_end bigint, p_last_stable_offset bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.observe_many(p_group_id text, p_topics text[], p_partitions integer[], p_topic_ids text[], p_log_starts bigint[], p_log_ends bigint[], p_last_stable_offsets bigint[]) RETURNS SETOF sharequeue.observed_of
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.open_dead_letters(p_group_id text, p_topic text, p_partition integer, p_max_records bigint) RETURNS TABLE(sequence bigint, opened_at timestamp with time zone, topic_id text, cause text, delivery_count smallint, offsets int8multirange)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.open_redrive(p_topic text, p_topic_id text, p_partition integer, p_redrive_id uuid, p_wanted int8multirange, p_max_records bigint) RETURNS TABLE(sequence bigint, redrive_id uuid, target_topic text, only_group text, by_key boolean, offsets int8multirange)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.pause(p_group_id text, p_reason text, p_topic text DEFAULT NULL::text, p_partition integer DEFAULT NULL::integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.principal() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.principal_of_token(p_secret_hash bytea, p_scope text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.raise_group_epoch(p_group_id text, p_subscription_changed boolean) RETURNS integer
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue.raise_state_epochs() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.rebalance_group(p_group_id text, p_group_epoch integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.rebind_cluster(p_cluster_id text) RETURNS text
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue.record_report(p_group_id text) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.records(p_offsets int8multirange) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue.refresh_group(p_group_id text, p_assignment_interval_ms integer[], OUT group_epoch integer, OUT to_assign jsonb) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.release(p_group_id text, p_member_id text, p_token uuid DEFAULT NULL::uuid, p_cancelled boolean DEFAULT false, p_refund boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.release_many(p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_tokens uuid[], p_cancelled boolean DEFAULT false, p_refund boolean DEFAULT false, p_suspects boolean[] DEFAULT NULL::boolean[]) RETURNS SETOF sharequeue.released_of
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.removable_outputs(p_group_id text, p_sink text, p_grace interval) RETURNS TABLE(compaction_id uuid, folders text[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE TABLE sharequeue.acls (
    principal text NOT NULL,
    operation text NOT NULL,
    permission text NOT NULL,
    pattern_type text NOT NULL,
    resource_name text NOT NULL,
    resource_type text DEFAULT 'GROUP'::text NOT NULL,
    CONSTRAINT acls_operation_known CHECK ((operation = ANY (ARRAY['ALL'::text, 'READ'::text, 'DESCRIBE'::text, 'ALTER'::text, 'DELETE'::text, 'ALTER_CONFIGS'::text, 'DESCRIBE_CONFIGS'::text]))),
    CONSTRAINT acls_operation_of_topic CHECK (((resource_type = 'GROUP'::text) OR (operation = ANY (ARRAY['ALL'::text, 'READ'::text, 'DESCRIBE'::text])))),
    CONSTRAINT acls_pattern_type_known CHECK ((pattern_type = ANY (ARRAY['LITERAL'::text, 'PREFIXED'::text]))),
    CONSTRAINT acls_permission_known CHECK ((permission = ANY (ARRAY['ALLOW'::text, 'DENY'::text]))),
    CONSTRAINT acls_principal_is_user CHECK ((principal ~~ 'User:_%'::text)),
    CONSTRAINT acls_resource_name_not_empty CHECK ((resource_name <> ''::text)),
    CONSTRAINT acls_resource_type_known CHECK ((resource_type = ANY (ARRAY['GROUP'::text, 'TOPIC'::text])))
);

CREATE FUNCTION sharequeue.remove_acls(p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_name text, p_dry_run boolean DEFAULT false, p_resource_type text DEFAULT NULL::text) RETURNS SETOF sharequeue.acls
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.remove_deleted_topics(p_gone_for interval, p_execute boolean, p_group_id text DEFAULT NULL::text) RETURNS TABLE(topic text, topic_id text, gone_since timestamp with time zone, group_id text, share_partitions bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.remove_reports(p_group_id text, p_keep interval, p_limit integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.renew(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, OUT error_code smallint, OUT error_message text, OUT expires_at timestamp with time zone) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.renew_many(p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text, p_member_epoch integer, p_tokens uuid[]) RETURNS SETOF sharequeue.renewed_of
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.replay_batches(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(first_offset bigint, last_offset bigint, part integer, state smallint, delivery_count smallint, lease_id bigint, isolate bigint, not_before timestamp with time zone, cause text, offsets int8multirange)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.replay_leases(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(lease_id bigint, member_id text, member_epoch integer, token uuid, lock_duration_ms integer, acquired_at timestamp with time zone, expires_at timestamp with time zone, fan_out boolean, own_lock_duration boolean, read_committed boolean)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.replay_outcomes(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(outcome text, delivery_count smallint, records bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.replay_share_partition(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(spso bigint, speo bigint, delivery_complete_count bigint, accepted_first bigint, lost_records bigint, dead_letter_sequence bigint, next_expiry timestamp with time zone, state_epoch integer, redeliverable boolean, advance_due boolean, status text, paused_reason text, topic_id text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.report_losses(p_group_id text, p_topics text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.require_read_committed() RETURNS void
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue.reset_offsets(p_group_id text, p_topics text[], p_partitions integer[], p_topic_ids text[], p_start_offsets bigint[], p_execute boolean) RETURNS SETOF sharequeue.reset
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.revoke_tokens(p_token_id uuid, p_principal text, p_dry_run boolean DEFAULT false) RETURNS TABLE(token_id uuid, principal text, note text, created_at timestamp with time zone, expires_at timestamp with time zone, revoked_at timestamp with time zone, scopes text[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.roll_up_due_days() RETURNS date[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET "TimeZone" TO 'UTC';

CREATE FUNCTION sharequeue.roll_up_journal(p_day date) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET "TimeZone" TO 'UTC';

CREATE FUNCTION sharequeue.schema_version(OUT version text, OUT digest text) RETURNS record
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.service_drains() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.set_clock_offset(p_amount interval) RETURNS void
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue.set_service_configs(p_configs jsonb) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.sink_owners(p_folders text[]) RETURNS TABLE(folder text, group_id text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.snapshots(p_share_partition_id bigint) RETURNS TABLE(journal_id bigint, taken_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.state_id() RETURNS uuid
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.stored_configs(p_group_id text) RETURNS TABLE(name text, value text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.stored_service_configs() RETURNS TABLE(name text, value text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.sweep(p_limit integer, OUT leases bigint, OUT records bigint, OUT stuck jsonb) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp' SET enable_seqscan TO 'off' SET lock_timeout TO '50ms';

CREATE FUNCTION sharequeue.take_service_lease(p_task text, p_holder text, p_token uuid, p_seconds double precision) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.take_snapshot(p_share_partition_id bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.take_snapshots(p_updates integer, p_limit integer DEFAULT 100) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.topics_redriven_for_others(p_group_id text) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.trim_redrive(p_topic text, p_topic_id text, p_partition integer, p_sequence bigint, p_offsets int8multirange) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.verify(p_group_id text DEFAULT NULL::text) RETURNS TABLE(group_id text, topic text, partition integer, violation text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue.verify_journal(p_group_id text DEFAULT NULL::text, p_snapshots integer DEFAULT 1) RETURNS TABLE(group_id text, topic text, partition integer, journal_id bigint, differs text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue_internal.absent(p_group_id text, p_topic text, p_partition integer, p_operation text, OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql STABLE;

CREATE TABLE sharequeue.group_settings (
    group_id text NOT NULL,
    delivery_count_limit integer NOT NULL,
    lock_duration_ms integer NOT NULL,
    min_lock_duration_ms integer NOT NULL,
    max_lock_duration_ms integer NOT NULL,
    max_record_locks bigint NOT NULL,
    read_committed boolean NOT NULL,
    renew_enabled boolean NOT NULL,
    dead_letters boolean NOT NULL,
    paused_reason text,
    acls_apply boolean DEFAULT false NOT NULL,
    breaker_percent integer DEFAULT 0 NOT NULL,
    breaker_min_records bigint DEFAULT 20 NOT NULL,
    breaker_window_records bigint DEFAULT 100 NOT NULL,
    breaker_probe_records bigint DEFAULT 10 NOT NULL,
    breaker_open_ms integer DEFAULT 30000 NOT NULL,
    refund_cancelled boolean DEFAULT false NOT NULL
)
WITH (fillfactor='70');

CREATE FUNCTION sharequeue_internal.acknowledge_parts(p_id bigint, p_settings sharequeue.group_settings, p_leases bigint[], p_from bigint, p_last bigint, p_acknowledgements sharequeue.acknowledgements, p_not_before timestamp with time zone) RETURNS TABLE(outcome text, state smallint, delivery_count smallint, records bigint)
    LANGUAGE plpgsql SET work_mem TO '64MB' SET enable_seqscan TO 'off' SET plan_cache_mode TO 'force_generic_plan';

CREATE TABLE sharequeue.share_partitions (
    share_partition_id bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id text NOT NULL,
    status text DEFAULT 'active'::text NOT NULL,
    state_epoch integer NOT NULL,
    spso bigint NOT NULL,
    speo bigint NOT NULL,
    delivery_complete_count bigint DEFAULT 0 NOT NULL,
    lost_records bigint DEFAULT 0 NOT NULL,
    log_start bigint DEFAULT 0 NOT NULL,
    log_end bigint DEFAULT 0 NOT NULL,
    last_stable_offset bigint DEFAULT 0 NOT NULL,
    observed_at timestamp with time zone,
    dead_letter_sequence bigint DEFAULT 0 NOT NULL,
    next_expiry timestamp with time zone,
    redeliverable boolean DEFAULT false NOT NULL,
    accepted_first bigint DEFAULT 0 NOT NULL,
    advance_due boolean DEFAULT false NOT NULL,
    paused_reason text,
    folded_lease_id bigint,
    folded_acquired_at timestamp with time zone,
    folded_lag bigint,
    folded_max_record_locks bigint,
    folded_clock_offset interval,
    folded_token uuid,
    folded_request_id uuid,
    folded_lock_duration_ms integer,
    folded_member_epoch integer,
    folded_read_committed boolean,
    folded_fan_out boolean,
    folded_member_id text,
    replaced_topic_ids text[]
)
WITH (fillfactor='50');

CREATE FUNCTION sharequeue_internal.acknowledge_under_lock(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder, p_batches sharequeue_internal.batches, p_renew_allowed boolean, p_not_before timestamp with time zone, p_at timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.acknowledgements_fault(p_acknowledgements sharequeue.acknowledgements) RETURNS text
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.acknowledgements_from(p_acknowledgements sharequeue.acknowledgements, p_first bigint) RETURNS sharequeue.acknowledgements
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.acls_apply(p_group_id text) RETURNS boolean
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.acquire_under_lock(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder, p_max_records bigint, p_options sharequeue_internal.fetch_options, p_at timestamp with time zone) RETURNS SETOF sharequeue.acquired
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.advance_if_due(p_share_partition_id bigint) RETURNS boolean
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.advance_log_start(p_sp sharequeue.share_partitions, p_log_start bigint) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.advance_spso(p_share_partition_id bigint, p_completed bigint DEFAULT 0, p_accepted_first bigint DEFAULT 0) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.allowed(p_resource_type text, p_name text, p_operation text, p_principal text) RETURNS boolean
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.apply_acknowledgements(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_member_id text, p_token uuid, p_acknowledgements sharequeue.acknowledgements, p_asked int8multirange, p_not_before timestamp with time zone, p_at timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.archive_available(p_id bigint, p_first bigint, p_last bigint) RETURNS bigint
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.audit(p_act text, p_group_id text, p_before jsonb, p_after jsonb) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.audit_group_config() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue_internal.audit_log_is_append_only() RETURNS trigger
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.authorise(p_group_id text, p_operation text) RETURNS void
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.authorise_cluster() RETURNS void
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.authorise_heartbeat(p_group_id text, p_principal text, p_topics text[]) RETURNS void
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.authorise_topics(p_group_id text, p_operation text, p_topics text[]) RETURNS void
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.authorised(p_group_id text, p_operation text) RETURNS boolean
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.batch_at(p_id bigint, p_offset bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.batch_fault(p_batches sharequeue_internal.batches, p_run bigint) RETURNS text
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.bounded_group_config(p_group_id text, p_name text) RETURNS bigint
    LANGUAGE sql STABLE SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.cached(p_id bigint, p_first bigint, p_last bigint) RETURNS int8multirange
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.check_acl(p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_type text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.check_acquire(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder, p_max_records bigint, p_options sharequeue_internal.fetch_options, OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.check_between(p_what text, p_value bigint, p_least bigint, p_most bigint) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.check_group_id(p_group_id text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.check_heartbeat(p_member_id text, p_member_epoch integer, p_rack_id text, p_subscribed_topic_names text[], p_client_id text, p_client_host text, p_max_size integer, p_assign boolean) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.check_many(p_most integer, p_topics text[], p_partitions integer[], VARIADIC p_lengths integer[]) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.check_member(p_group_id text, p_member_id text, p_member_epoch integer, OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.check_name(p_what text, p_value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.check_offsets(p_offsets int8multirange) RETURNS int8multirange
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.check_outputs(p_id bigint, p_member_id text, p_token uuid, p_acknowledgements sharequeue.acknowledgements, p_outputs jsonb, OUT error_code smallint, OUT error_message text, OUT lease_id bigint) RETURNS record
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.check_present(p_what text, p_value anyelement) RETURNS anyelement
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.check_service_configs(p_configs jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.check_span(p_what text, p_value interval) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.check_start(p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.check_text(p_what text, p_value text, p_longest integer) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.check_topic_id(p_sp sharequeue.share_partitions, p_topic_id text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.circuit_acknowledgements(p_id bigint, p_settings sharequeue.group_settings, p_acknowledgements sharequeue.acknowledgements, p_asked int8multirange, p_at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.circuit_allows(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_most bigint, p_at timestamp with time zone, OUT most bigint, OUT probe boolean) RETURNS record
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.circuit_counts(p_id bigint, p_settings sharequeue.group_settings, p_acknowledged int8multirange, p_failed int8multirange, p_returning int8multirange, p_at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.circuit_lapse(p_id bigint, p_lease_id bigint) RETURNS timestamp with time zone
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.circuit_probes(p_id bigint, p_lease_id bigint) RETURNS void
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.claim_folders(p_group_id text, p_outputs jsonb) RETURNS text
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.clock_unfold() RETURNS trigger
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.compile_group_settings(p_group_id text) RETURNS void
    LANGUAGE sql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.count_event(p_share_partition_id bigint, p_event text, p_records bigint) RETURNS void
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.count_outcome(p_share_partition_id bigint, p_outcome text, p_delivery_count smallint, p_records bigint) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.covers(p_pattern_type text, p_resource_name text, p_name text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.delete_share_partitions(p_ids bigint[]) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.due_assignment(p_group_id text, p_interval_ms integer) RETURNS jsonb
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.end_cancelled(p_share_partition_id bigint, p_lease_id bigint, p_refund boolean, p_suspects boolean, OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.end_leases(p_share_partition_id bigint, p_lease_ids bigint[], OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.end_leases_at(p_share_partition_id bigint, p_lease_ids bigint[], p_not_before timestamp with time zone, OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE plpgsql SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue_internal.end_unacknowledged(p_share_partition_id bigint, p_lease_id bigint, OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.fetch_fault(p_options sharequeue_internal.fetch_options) RETURNS text
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.fetch_whole_batch(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_holder sharequeue_internal.holder, p_request_id uuid, p_first bigint, p_last bigint, p_max_records bigint, p_redelivery text) RETURNS sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.first_failure(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_batches sharequeue_internal.batches, p_cached int8multirange, p_held int8multirange, p_asked int8multirange, OUT run bigint, OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.first_outside(p_acknowledgements sharequeue.acknowledgements, p_offsets int8multirange) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.first_records(p_offsets int8multirange, p_count bigint) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.folded_fetch(p_sp sharequeue.share_partitions) RETURNS sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.force_part(p_id bigint, p_first bigint, p_last bigint, p_part integer, p_delivery_count smallint, p_offsets int8multirange, p_act text, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.forced_plan(p_act text, p_state smallint, p_delivery_count smallint, p_member_id text, p_offsets int8multirange, p_held_back boolean, p_settings sharequeue.group_settings) RETURNS sharequeue.forced
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.forget_attempts(p_id bigint, p_spso bigint) RETURNS void
    LANGUAGE sql SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue_internal.gone_topic_silence() RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.group_config(p_group_id text, p_name text) RETURNS text
    LANGUAGE sql STABLE SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.group_config_names() RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.group_configs_lock_group() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue_internal.group_settings_follow() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue_internal.group_settings_learn_acls() RETURNS trigger
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.group_settings_unfold() RETURNS trigger
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.groups_learn_acls() RETURNS trigger
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.held(p_id bigint, p_first bigint, p_last bigint, p_member_id text, p_token uuid) RETURNS int8multirange
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.in_flight_span(p_sp sharequeue.share_partitions, p_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.is_folded_until_later(p_share_partition_id bigint, p_at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.is_holder(p_lease_id bigint, p_member_id text, p_token uuid) RETURNS boolean
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.is_super_user() RETURNS boolean
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.is_trusted() RETURNS boolean
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.isolation_level(p_read_committed boolean) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.join_terminal(p_share_partition_id bigint, p_first bigint, p_last bigint) RETURNS void
    LANGUAGE plpgsql SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue_internal.joined(p_result sharequeue.taken_offsets, p_got sharequeue.taken_offsets) RETURNS sharequeue.taken_offsets
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.journal_batch() RETURNS trigger
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.journal_lease() RETURNS trigger
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.journal_outcome() RETURNS trigger
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.journal_pause() RETURNS trigger
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.journal_share_partition(p_sp sharequeue.share_partitions, p_kind text, p_named boolean) RETURNS bigint
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.journal_share_partition_change() RETURNS trigger
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.leases_between(p_id bigint, p_from bigint, p_last bigint, p_member_id text, p_token uuid) RETURNS bigint[]
    LANGUAGE plpgsql STABLE;

CREATE TABLE sharequeue.circuit_breakers (
    share_partition_id bigint NOT NULL,
    state text DEFAULT 'closed'::text NOT NULL,
    records double precision DEFAULT 0 CONSTRAINT circuit_breakers_answered_not_null NOT NULL,
    failed double precision DEFAULT 0 NOT NULL,
    opened_at timestamp with time zone,
    retry_at timestamp with time zone,
    reason text,
    probe int8multirange DEFAULT '{}'::int8multirange NOT NULL,
    probe_records bigint DEFAULT 0 NOT NULL,
    probe_failed bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70');

CREATE FUNCTION sharequeue_internal.leasing_blocked(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_circuit sharequeue.circuit_breakers, p_topic_deleted boolean, p_letters text, OUT blocked_by text, OUT blocked_reason text, OUT blocked_until timestamp with time zone, OUT blocked_offset bigint) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue_internal.let_go_overtaken(p_sp sharequeue.share_partitions, p_member_id text, p_token uuid, p_accept int8multirange) RETURNS TABLE(lease_id bigint, delivery_count smallint, accepted bigint)
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.lock_empty_group(p_group_id text) RETURNS boolean
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.lock_for_snapshots(p_share_partition_ids bigint[]) RETURNS bigint[]
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.lock_group(p_group_id text) RETURNS boolean
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.lock_in_order(p_group_ids text[], p_settings boolean, p_share_partitions boolean, p_topic text DEFAULT NULL::text, p_partition integer DEFAULT NULL::integer) RETURNS bigint[]
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.lock_share_partition(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_operation text DEFAULT 'READ'::text, OUT error_code smallint, OUT error_message text, OUT sp sharequeue.share_partitions, OUT settings sharequeue.group_settings) RETURNS record
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.lock_share_partitions(p_group_id text, p_topics text[], p_partitions integer[], VARIADIC p_lengths integer[]) RETURNS boolean[]
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.longest_silence() RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.max_runs() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.may_fold(p_group_id text, p_version xid, p_share_partition_id bigint) RETURNS boolean
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.next_available(p_share_partition_id bigint, p_from bigint, p_at timestamp with time zone, p_leave_out int8multirange DEFAULT '{}'::int8multirange) RETURNS bigint
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.next_delivery(p_delivery_count smallint, p_isolate bigint, p_limit integer) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.next_epoch(p_of_what text, p_epoch integer) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.next_epoch_of_empty_group(p_group_id text) RETURNS integer
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.next_suspects(p_group_id text, p_topic text, p_partition integer, p_leave_out int8multirange, OUT suspects boolean, OUT last_attempt boolean) RETURNS record
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.not_before_fault(p_not_before timestamp with time zone) RETURNS text
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.note_attempts(p_id bigint, p_lease_ids bigint[], p_offsets int8multirange DEFAULT NULL::int8multirange) RETURNS void
    LANGUAGE plpgsql SET enable_seqscan TO 'off';

CREATE FUNCTION sharequeue_internal.note_leavers(p_group_id text, p_members integer) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.note_outage(p_longer_than interval, p_beat boolean) RETURNS interval
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.of_gone_topics(p_gone_for interval, p_group_id text, p_at timestamp with time zone) RETURNS TABLE(share_partition_id bigint, group_id text, gone_since timestamp with time zone)
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.offsets_fault(p_offsets int8multirange) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.offsets_from(p_offsets int8multirange, p_first bigint) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.offsets_of(p_first bigint, p_last bigint, p_offsets int8multirange) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.open_circuit(p_id bigint, p_settings sharequeue.group_settings, p_at timestamp with time zone, p_reason text) RETURNS void
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.outage_margin() RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.outlast_outage(p_share_partition_id bigint, p_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.outputs_fault(p_outputs jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.place(p_share_partition_id bigint, p_first bigint, p_last bigint, p_state smallint, p_delivery_count smallint, p_offsets int8multirange, p_lease_id bigint DEFAULT NULL::bigint, p_cause text DEFAULT NULL::text, p_isolate bigint DEFAULT NULL::bigint, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.read_batches(p_batches sharequeue_internal.batches, p_renew_allowed boolean, OUT wrong text, OUT doubled boolean, OUT acknowledgements sharequeue.acknowledgements) RETURNS record
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.redeliver(p_id bigint, p_first bigint, p_last bigint, p_lease_id bigint, p_got sharequeue.taken_offsets, p_limit integer) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.refund(p_id bigint, p_offsets int8multirange) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.refuse_other_principal(p_group_id text, p_member_id text, p_principal text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.refuse_stranger(p_group_id text, p_member_id text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.release_held(p_group_id text, p_member_ids text[], p_token uuid DEFAULT NULL::uuid, p_cancelled boolean DEFAULT false, p_refund boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.release_of(p_share_partition_id bigint, p_member_id text, p_token uuid, p_cancelled boolean, p_refund boolean, p_suspects boolean) RETURNS bigint
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.remember(p_request_key uuid, p_operation text, p_result jsonb, p_sets int8multirange[] DEFAULT NULL::int8multirange[]) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.renew_next_expiry(p_share_partition_id bigint) RETURNS void
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.renew_offsets(p_id bigint, p_settings sharequeue.group_settings, p_member_id text, p_token uuid, p_offsets int8multirange, p_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.replay_from(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint) RETURNS bigint
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.replay_offsets(p_before int8multirange, p_kind text, p_offsets int8multirange) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.request_key(p_share_partition_id bigint, p_operation text, p_member_id text, p_request_id uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.request_key_many(p_group_id text, p_topics text[], p_partitions integer[], p_operation text, p_member_id text, p_request_id uuid) RETURNS uuid
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.role_named(p_purpose text) RETURNS text
    LANGUAGE sql STABLE SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue_internal.runs(p_batches sharequeue_internal.batches) RETURNS TABLE(run bigint, first bigint, past bigint, type smallint)
    LANGUAGE plpgsql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.settle_lapsed(p_share_partition_id bigint, p_at timestamp with time zone, p_limit bigint DEFAULT NULL::bigint, OUT leases bigint, OUT records bigint) RETURNS record
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.share_group_named() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path TO 'pg_catalog', 'pg_temp';

CREATE FUNCTION sharequeue_internal.share_partition_gone() RETURNS trigger
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE FUNCTION sharequeue_internal.sink_folder(p_location text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.span(p_acknowledgements sharequeue.acknowledgements) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.stored_fetch(p_group_id text, p_topic text, p_partition integer, p_request_id uuid, p_member_id text, p_token uuid, p_first bigint) RETURNS sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.stored_result(p_request_key uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.take(p_share_partition_id bigint, p_first bigint, p_part integer, p_offsets int8multirange) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.take_batch(p_id bigint, p_first bigint, p_read_first bigint, p_read_last bigint, p_lease_id bigint, p_at timestamp with time zone, p_most bigint, p_before bigint, p_limit integer) RETURNS sharequeue.taken_offsets
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.take_fan_out(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_max_records bigint, p_read_end bigint, p_lease_id bigint, p_at timestamp with time zone, p_leave_out int8multirange) RETURNS sharequeue.taken
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.take_fresh(p_sp sharequeue.share_partitions, p_first bigint, p_last bigint, p_budget bigint, p_lease_id bigint, p_options sharequeue_internal.fetch_options, p_empty boolean) RETURNS sharequeue.taken_offsets
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.take_kafka(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_max_records bigint, p_read_end bigint, p_lease_id bigint, p_at timestamp with time zone, p_options sharequeue_internal.fetch_options) RETURNS sharequeue.taken
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.to_assign(p_group_id text, p_group_epoch integer) RETURNS jsonb
    LANGUAGE plpgsql STABLE;

CREATE FUNCTION sharequeue_internal.topic_authorised(p_topic text, p_operation text) RETURNS boolean
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.unfold(p_share_partition_id bigint) RETURNS void
    LANGUAGE plpgsql;

CREATE FUNCTION sharequeue_internal.wake_consumers() RETURNS trigger
    LANGUAGE plpgsql SET search_path TO 'pg_catalog';

CREATE TABLE sharequeue.service_beat (
    singleton boolean DEFAULT true NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    server_started_at timestamp with time zone NOT NULL,
    outage_from timestamp with time zone,
    outage_until timestamp with time zone,
    CONSTRAINT service_beat_singleton CHECK (singleton)
)
WITH (fillfactor='50');

CREATE FUNCTION sharequeue_internal.was_away(p_beat sharequeue.service_beat) RETURNS boolean
    LANGUAGE sql STABLE;

CREATE FUNCTION sharequeue_internal.was_silent(p_beat sharequeue.service_beat) RETURNS boolean
    LANGUAGE sql;

CREATE FUNCTION sharequeue_internal.with_sets(p_rows sharequeue.acquired_of[], p_sets int8multirange[]) RETURNS SETOF sharequeue.acquired_of
    LANGUAGE sql IMMUTABLE;

CREATE FUNCTION sharequeue_internal.within_bounds(p_own text, p_service integer[]) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE;

CREATE FUNCTION sharequeue_internal.without_aborted(p_id bigint, p_result sharequeue.taken_offsets, p_aborted int8multirange, p_lease_id bigint) RETURNS sharequeue.taken
    LANGUAGE plpgsql;

CREATE AGGREGATE sharequeue_internal.replayed(text, int8multirange) (
    SFUNC = sharequeue_internal.replay_offsets,
    STYPE = int8multirange
);

CREATE VIEW sharequeue.acl_list (
    resource_type text,
    pattern_type text,
    resource_name text,
    principal text,
    permission text,
    operation text
);

CREATE TABLE sharequeue.in_flight_batches (
    share_partition_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    part integer DEFAULT 0 NOT NULL,
    state smallint NOT NULL,
    delivery_count smallint NOT NULL,
    lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    cause text,
    offsets int8multirange,
    journalled boolean DEFAULT false NOT NULL
)
WITH (fillfactor='90');
ALTER TABLE ONLY sharequeue.in_flight_batches ALTER COLUMN offsets SET STORAGE EXTERNAL;

CREATE VIEW sharequeue.all_batches (
    share_partition_id bigint,
    first_offset bigint,
    last_offset bigint,
    part integer,
    state smallint,
    delivery_count smallint,
    lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    cause text,
    offsets int8multirange
);

CREATE TABLE sharequeue.leases (
    lease_id bigint NOT NULL,
    share_partition_id bigint NOT NULL,
    member_id text NOT NULL,
    member_epoch integer NOT NULL,
    token uuid DEFAULT gen_random_uuid() NOT NULL,
    lock_duration_ms integer NOT NULL,
    acquired_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    fan_out boolean DEFAULT true NOT NULL,
    own_lock_duration boolean DEFAULT true NOT NULL,
    journalled boolean DEFAULT false NOT NULL,
    request_id uuid,
    fetched sharequeue.acknowledged_and_acquired,
    read_committed boolean
);

CREATE VIEW sharequeue.all_leases (
    lease_id bigint,
    share_partition_id bigint,
    member_id text,
    member_epoch integer,
    token uuid,
    lock_duration_ms integer,
    acquired_at timestamp with time zone,
    expires_at timestamp with time zone,
    fan_out boolean,
    own_lock_duration boolean,
    read_committed boolean
);

CREATE TABLE sharequeue.assignments (
    group_id text NOT NULL,
    member_id text NOT NULL,
    share_partition_id bigint NOT NULL
);

CREATE TABLE sharequeue.audit_log (
    audit_id bigint NOT NULL,
    happened_at timestamp with time zone NOT NULL,
    principal text NOT NULL,
    role_name text NOT NULL,
    act text NOT NULL,
    group_id text,
    before jsonb,
    after jsonb
);

ALTER TABLE sharequeue.audit_log ALTER COLUMN audit_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME sharequeue.audit_log_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW sharequeue.audit_trail (
    audit_id bigint,
    happened_at timestamp with time zone,
    principal text,
    role_name text,
    act text,
    group_id text,
    before jsonb,
    after jsonb
);

CREATE TABLE sharequeue.authorizer (
    singleton boolean DEFAULT true NOT NULL,
    allow_everyone_if_no_acl_found boolean DEFAULT true NOT NULL,
    CONSTRAINT authorizer_singleton CHECK (singleton)
);

CREATE TABLE sharequeue.members (
    group_id text NOT NULL,
    member_id text NOT NULL,
    member_epoch integer NOT NULL,
    previous_member_epoch integer DEFAULT 0 NOT NULL,
    rack_id text,
    client_id text DEFAULT ''::text NOT NULL,
    client_host text DEFAULT ''::text NOT NULL,
    subscribed_topic_names text[] DEFAULT '{}'::text[] NOT NULL,
    joined_at timestamp with time zone NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL,
    session_expires_at timestamp with time zone NOT NULL,
    told_share_partition_ids bigint[],
    principal text,
    CONSTRAINT members_member_id_length CHECK (((length(member_id) >= 1) AND (length(member_id) <= 36)))
)
WITH (fillfactor='50');

CREATE TABLE sharequeue.topics (
    topic text NOT NULL,
    topic_id text NOT NULL,
    partitions integer NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

CREATE VIEW sharequeue.awaited_share_partitions (
    group_id text,
    topic text,
    partition integer
);

CREATE TABLE sharequeue.clock_offset (
    singleton boolean DEFAULT true NOT NULL,
    amount interval DEFAULT '00:00:00'::interval NOT NULL,
    CONSTRAINT clock_offset_singleton CHECK (singleton)
);

CREATE TABLE sharequeue.compactions (
    compaction_id uuid NOT NULL,
    group_id text NOT NULL,
    sink text NOT NULL,
    location text NOT NULL,
    began_at timestamp with time zone NOT NULL,
    committed_at timestamp with time zone,
    replaced text[] DEFAULT '{}'::text[] NOT NULL,
    abandoned_at timestamp with time zone,
    CONSTRAINT compactions_committed_or_abandoned CHECK (((committed_at IS NULL) OR (abandoned_at IS NULL)))
);

CREATE TABLE sharequeue.lease_outputs (
    lease_id bigint NOT NULL,
    sink text NOT NULL,
    location text NOT NULL,
    records bigint NOT NULL,
    acknowledged_at timestamp with time zone NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id text NOT NULL
);

CREATE VIEW sharequeue.counted_outputs (
    lease_id bigint,
    group_id text,
    topic text,
    partition integer,
    sink text,
    location text,
    records bigint,
    acknowledged_at timestamp with time zone,
    topic_id text
);

CREATE TABLE sharequeue.journal_daily (
    day date NOT NULL,
    share_partition_id bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    updates bigint NOT NULL,
    snapshots bigint NOT NULL,
    leases bigint NOT NULL,
    entered bigint NOT NULL,
    accepted_first bigint NOT NULL,
    lost_records bigint NOT NULL,
    highest_delivery_count smallint NOT NULL,
    spso bigint NOT NULL,
    speo bigint NOT NULL,
    delivery_complete_count bigint NOT NULL,
    state_epoch integer NOT NULL,
    total_accepted_first bigint NOT NULL,
    total_lost_records bigint NOT NULL
);

CREATE TABLE sharequeue.journal_daily_outcomes (
    day date NOT NULL,
    share_partition_id bigint NOT NULL,
    outcome text NOT NULL,
    delivery_count smallint NOT NULL,
    records bigint NOT NULL
);

CREATE VIEW sharequeue.daily_outcomes (
    day date,
    group_id text,
    topic text,
    partition integer,
    outcome text,
    delivery_count smallint,
    records bigint
);

CREATE VIEW sharequeue.daily_rollups (
    day date,
    group_id text,
    topic text,
    partition integer,
    updates bigint,
    snapshots bigint,
    leases bigint,
    entered bigint,
    accepted_first bigint,
    lost_records bigint,
    highest_delivery_count smallint,
    spso bigint,
    speo bigint,
    delivery_complete_count bigint,
    state_epoch integer
);

CREATE TABLE sharequeue.dead_letter_batches (
    share_partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    written_at timestamp with time zone,
    dropped boolean DEFAULT false NOT NULL,
    total_letters bigint,
    total_dropped bigint
);

CREATE TABLE sharequeue.dead_letter_runs (
    share_partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    cause text NOT NULL,
    delivery_count smallint NOT NULL,
    offsets int8multirange NOT NULL,
    CONSTRAINT dead_letter_runs_cause_known CHECK ((cause = ANY (ARRAY['rejected'::text, 'exceeded'::text])))
);

CREATE VIEW sharequeue.dead_letter_batch_runs (
    group_id text,
    topic text,
    partition integer,
    topic_id text,
    sequence bigint,
    opened_at timestamp with time zone,
    written_at timestamp with time zone,
    dropped boolean,
    cause text,
    delivery_count smallint,
    offsets int8multirange
);

CREATE VIEW sharequeue.written_dead_letters (
    group_id text,
    topic text,
    partition integer,
    sequence bigint,
    cause text,
    delivery_count smallint,
    offsets int8multirange,
    written_at timestamp with time zone,
    dropped boolean
);

CREATE VIEW sharequeue.dead_letter_causes (
    day date,
    group_id text,
    topic text,
    partition integer,
    cause text,
    delivery_count smallint,
    written_records bigint,
    dropped_records bigint
);

CREATE TABLE sharequeue.held_dead_letters (
    share_partition_id bigint NOT NULL,
    reason text NOT NULL,
    since timestamp with time zone NOT NULL
);

CREATE VIEW sharequeue.dead_letters_held (
    group_id text,
    topic text,
    partition integer,
    records bigint,
    reason text,
    since timestamp with time zone
);

CREATE TABLE sharequeue.delivery_count_history (
    reported_at timestamp with time zone NOT NULL,
    share_partition_id bigint NOT NULL,
    outcome text NOT NULL,
    delivery_count smallint NOT NULL,
    records bigint NOT NULL
);

CREATE VIEW sharequeue.delivery_count_reports (
    reported_at timestamp with time zone,
    group_id text,
    topic text,
    partition integer,
    outcome text,
    delivery_count smallint,
    records bigint
);

CREATE TABLE sharequeue.delivery_counts (
    share_partition_id bigint NOT NULL,
    outcome text NOT NULL,
    delivery_count smallint NOT NULL,
    records bigint NOT NULL,
    CONSTRAINT delivery_counts_outcome_known CHECK ((outcome = ANY (ARRAY['accepted'::text, 'rejected'::text, 'exceeded'::text, 'gap'::text])))
)
WITH (fillfactor='70');

CREATE VIEW sharequeue.delivery_count_totals (
    share_partition_id bigint,
    outcome text,
    delivery_count smallint,
    records bigint,
    group_id text,
    topic text,
    partition integer
);

CREATE TABLE sharequeue.failed_attempts (
    share_partition_id bigint NOT NULL,
    lease_id bigint NOT NULL,
    member_id text NOT NULL,
    client_id text NOT NULL,
    acquired_at timestamp with time zone NOT NULL,
    past bigint NOT NULL,
    offsets int8multirange NOT NULL
);
ALTER TABLE ONLY sharequeue.failed_attempts ALTER COLUMN offsets SET STORAGE EXTERNAL;

ALTER TABLE ONLY sharequeue.failed_attempts REPLICA IDENTITY FULL;

CREATE TABLE sharequeue.gone_topics (
    topic text NOT NULL,
    topic_id text NOT NULL,
    gone_since timestamp with time zone NOT NULL,
    said_at timestamp with time zone NOT NULL
);

CREATE TABLE sharequeue.group_configs (
    group_id text NOT NULL,
    name text NOT NULL,
    value text NOT NULL
);

ALTER TABLE sharequeue.leases ALTER COLUMN lease_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME sharequeue.leases_lease_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE sharequeue.journal (
    journal_id bigint DEFAULT nextval('sharequeue.leases_lease_id_seq'::regclass) NOT NULL,
    share_partition_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    first_offset bigint,
    last_offset bigint,
    gone_first bigint,
    lease_id bigint,
    gone_lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    acquired_at timestamp with time zone,
    expires_at timestamp with time zone,
    spso bigint,
    speo bigint,
    delivery_complete_count bigint,
    accepted_first bigint,
    lost_records bigint,
    dead_letter_sequence bigint,
    next_expiry timestamp with time zone,
    records bigint,
    token uuid,
    part integer,
    lock_duration_ms integer,
    member_epoch integer,
    state_epoch integer,
    partition integer,
    state smallint,
    delivery_count smallint,
    fan_out boolean,
    own_lock_duration boolean,
    redeliverable boolean,
    advance_due boolean,
    kind text NOT NULL,
    cause text,
    member_id text,
    status text,
    paused_reason text,
    topic_id text,
    group_id text,
    topic text,
    offsets int8multirange,
    read_committed boolean
)
PARTITION BY RANGE (at);
ALTER TABLE ONLY sharequeue.journal ALTER COLUMN offsets SET STORAGE EXTERNAL;

ALTER TABLE ONLY sharequeue.journal REPLICA IDENTITY FULL;

CREATE TABLE sharequeue.journal_snapshots (
    share_partition_id bigint NOT NULL,
    journal_id bigint NOT NULL,
    taken_at timestamp with time zone NOT NULL
);

CREATE TABLE sharequeue.observations (
    group_id text NOT NULL,
    topic text NOT NULL,
    observed_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE sharequeue.share_partition_history (
    reported_at timestamp with time zone NOT NULL,
    share_partition_id bigint NOT NULL,
    spso bigint NOT NULL,
    speo bigint NOT NULL,
    log_start bigint NOT NULL,
    log_end bigint NOT NULL,
    lag bigint NOT NULL,
    acquired bigint NOT NULL,
    available bigint NOT NULL,
    archiving bigint NOT NULL,
    delivery_complete_count bigint NOT NULL
);

CREATE VIEW sharequeue.share_partition_status (
    share_partition_id bigint,
    group_id text,
    topic text,
    partition integer,
    topic_id text,
    status text,
    state_epoch integer,
    spso bigint,
    speo bigint,
    log_start bigint,
    log_end bigint,
    last_stable_offset bigint,
    observed_at timestamp with time zone,
    delivery_complete_count bigint,
    lag bigint,
    in_flight bigint,
    available bigint,
    acquired bigint,
    archiving bigint,
    lost_records bigint,
    highest_delivery_count integer,
    leases bigint,
    next_expiry timestamp with time zone,
    waiting bigint,
    oldest_offset bigint,
    oldest_state text,
    oldest_since timestamp with time zone,
    paused_reason text,
    fault text,
    accepted bigint,
    rejected bigint,
    exhausted bigint,
    gap bigint,
    no_dlq bigint,
    dropped_letters bigint,
    held_reason text,
    waiting_until timestamp with time zone,
    blocked_by text,
    blocked_reason text,
    blocked_until timestamp with time zone,
    blocked_offset bigint
);

CREATE VIEW sharequeue.oldest_records (
    group_id text,
    topic text,
    partition integer,
    oldest_offset bigint,
    oldest_state text,
    waits_since timestamp with time zone,
    age_seconds double precision
);

CREATE TABLE sharequeue.share_groups (
    group_id text NOT NULL,
    group_epoch integer DEFAULT 1 NOT NULL,
    assignment_epoch integer DEFAULT 0 NOT NULL,
    assigned_at timestamp with time zone,
    metadata_hash text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    pipeline text,
    CONSTRAINT share_groups_group_id_not_empty CHECK ((group_id <> ''::text)),
    CONSTRAINT share_groups_pipeline_length CHECK (((length(pipeline) >= 1) AND (length(pipeline) <= 249)))
);

CREATE VIEW sharequeue.stuck_leases (
    lease_id bigint,
    group_id text,
    topic text,
    partition integer,
    member_id text,
    acquired_at timestamp with time zone,
    expires_at timestamp with time zone,
    records bigint,
    held_seconds double precision,
    reason text
);

CREATE VIEW sharequeue.group_figures (
    group_id text,
    share_partitions bigint,
    lag bigint,
    in_flight bigint,
    available bigint,
    acquired bigint,
    archiving bigint,
    waiting bigint,
    delivery_complete_count bigint,
    lost_records bigint,
    accepted bigint,
    rejected bigint,
    exhausted bigint,
    gap bigint,
    leases bigint,
    stuck_leases bigint,
    oldest_age_seconds double precision,
    finished_records bigint,
    window_seconds double precision,
    throughput double precision,
    time_to_drain_seconds double precision
);

CREATE VIEW sharequeue.group_list (
    group_id text,
    state text,
    members bigint,
    created_at timestamp with time zone
);

CREATE VIEW sharequeue.group_members (
    group_id text,
    member_id text,
    rack_id text,
    member_epoch integer,
    client_id text,
    client_host text,
    subscribed_topic_names text[],
    joined_at timestamp with time zone,
    session_expires_at timestamp with time zone,
    principal text
);

CREATE TABLE sharequeue.grown_topics (
    group_id text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    first_new integer NOT NULL,
    partitions integer NOT NULL
);

CREATE VIEW sharequeue.held_leases (
    lease_id bigint,
    group_id text,
    topic text,
    partition integer,
    member_id text,
    acquired_at timestamp with time zone,
    expires_at timestamp with time zone,
    seconds_left double precision,
    records bigint,
    offsets int8multirange,
    highest_delivery_count smallint,
    isolation_level text
);

CREATE VIEW sharequeue.in_flight_offsets (
    share_partition_id bigint,
    first_offset bigint,
    last_offset bigint,
    exploded boolean,
    state smallint,
    delivery_count smallint,
    lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    cause text,
    offsets int8multirange
);

CREATE VIEW sharequeue.in_flight_windows (
    group_id text,
    topic text,
    partition integer,
    spso bigint,
    speo bigint,
    state text,
    records bigint,
    offsets int8multirange
);

CREATE TABLE sharequeue.journal_counted (
    singleton boolean DEFAULT true NOT NULL,
    journal_id bigint NOT NULL,
    CONSTRAINT journal_counted_singleton CHECK (singleton)
);

CREATE TABLE sharequeue.journal_growth (
    share_partition_id bigint NOT NULL,
    updates bigint NOT NULL
)
WITH (fillfactor='70');

CREATE TABLE sharequeue.journal_other (
    journal_id bigint DEFAULT nextval('sharequeue.leases_lease_id_seq'::regclass) CONSTRAINT journal_journal_id_not_null NOT NULL,
    share_partition_id bigint CONSTRAINT journal_share_partition_id_not_null NOT NULL,
    at timestamp with time zone CONSTRAINT journal_at_not_null NOT NULL,
    first_offset bigint,
    last_offset bigint,
    gone_first bigint,
    lease_id bigint,
    gone_lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    acquired_at timestamp with time zone,
    expires_at timestamp with time zone,
    spso bigint,
    speo bigint,
    delivery_complete_count bigint,
    accepted_first bigint,
    lost_records bigint,
    dead_letter_sequence bigint,
    next_expiry timestamp with time zone,
    records bigint,
    token uuid,
    part integer,
    lock_duration_ms integer,
    member_epoch integer,
    state_epoch integer,
    partition integer,
    state smallint,
    delivery_count smallint,
    fan_out boolean,
    own_lock_duration boolean,
    redeliverable boolean,
    advance_due boolean,
    kind text CONSTRAINT journal_kind_not_null NOT NULL,
    cause text,
    member_id text,
    status text,
    paused_reason text,
    topic_id text,
    group_id text,
    topic text,
    offsets int8multirange,
    read_committed boolean
);
ALTER TABLE ONLY sharequeue.journal_other ALTER COLUMN offsets SET STORAGE EXTERNAL;

ALTER TABLE ONLY sharequeue.journal_other REPLICA IDENTITY FULL;

CREATE TABLE sharequeue.journal_rolled_up (
    day date NOT NULL
);

CREATE TABLE sharequeue.kafka_cluster (
    singleton boolean DEFAULT true NOT NULL,
    cluster_id text NOT NULL,
    bound_at timestamp with time zone NOT NULL,
    CONSTRAINT kafka_cluster_singleton CHECK (singleton)
);

CREATE VIEW sharequeue.lost_topics (
    group_id text,
    topic text,
    topic_id text,
    reason text
);

CREATE VIEW sharequeue.monitored_members (
    group_id text,
    member_id text,
    leases bigint,
    records bigint,
    oldest_lock_seconds double precision
);

CREATE TABLE sharequeue.record_events (
    share_partition_id bigint NOT NULL,
    event text NOT NULL,
    records bigint NOT NULL,
    CONSTRAINT record_events_event_known CHECK ((event = ANY (ARRAY['released'::text, 'renewed'::text, 'lapsed'::text])))
)
WITH (fillfactor='70');

CREATE VIEW sharequeue.monitored_share_partitions (
    share_partition_id bigint,
    group_id text,
    topic text,
    partition integer,
    spso bigint,
    speo bigint,
    log_start bigint,
    log_end bigint,
    lag bigint,
    lost_records bigint,
    in_flight_batches bigint,
    available bigint,
    acquired bigint,
    archiving bigint,
    accepted bigint,
    rejected bigint,
    exhausted bigint,
    gap bigint,
    released bigint,
    renewed bigint,
    lapsed bigint,
    letters bigint,
    dropped_letters bigint,
    letter_batches bigint,
    held_letters bigint,
    held_seconds double precision,
    oldest_offset bigint,
    oldest_waits_seconds double precision,
    observed_seconds double precision,
    condition text
);

CREATE TABLE sharequeue.redrive_batches (
    dead_letter_topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    sequence bigint NOT NULL,
    redrive_id uuid NOT NULL,
    offsets int8multirange NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    sent_at timestamp with time zone
);

CREATE TABLE sharequeue.redriven (
    dead_letter_topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    sequence bigint DEFAULT 0 NOT NULL,
    offsets int8multirange DEFAULT '{}'::int8multirange NOT NULL
);

CREATE TABLE sharequeue.redrives (
    redrive_id uuid NOT NULL,
    dead_letter_topic text NOT NULL,
    topic_id text NOT NULL,
    selection text NOT NULL,
    target_topic text,
    requested_by text DEFAULT SESSION_USER NOT NULL,
    requested_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    sent bigint DEFAULT 0 NOT NULL,
    only_group text,
    target_topics text[] DEFAULT '{}'::text[] NOT NULL,
    by_key boolean DEFAULT false NOT NULL
);

CREATE TABLE sharequeue.service_replicas (
    replica_id text NOT NULL,
    heard_at timestamp with time zone NOT NULL,
    drains boolean DEFAULT false NOT NULL,
    watched_at timestamp with time zone,
    swept_at timestamp with time zone,
    journal_kept_at timestamp with time zone,
    drained_at timestamp with time zone
)
WITH (fillfactor='50');

CREATE VIEW sharequeue.replicas (
    replica_id text,
    heard_at timestamp with time zone,
    drains boolean,
    watched_at timestamp with time zone,
    swept_at timestamp with time zone,
    journal_kept_at timestamp with time zone,
    drained_at timestamp with time zone
);

CREATE TABLE sharequeue.reported_losses (
    share_partition_id bigint NOT NULL,
    records bigint NOT NULL,
    CONSTRAINT reported_losses_records_natural CHECK ((records >= 0))
);

CREATE TABLE sharequeue.requests (
    request_key uuid CONSTRAINT requests_request_id_not_null NOT NULL,
    operation text NOT NULL,
    result jsonb,
    finished_at timestamp with time zone CONSTRAINT requests_answered_at_not_null NOT NULL,
    fetched sharequeue.acknowledged_and_acquired,
    sets int8multirange[]
);
ALTER TABLE ONLY sharequeue.requests ALTER COLUMN sets SET STORAGE EXTERNAL;

CREATE TABLE sharequeue.roles (
    purpose text NOT NULL,
    role_name text NOT NULL,
    CONSTRAINT roles_purpose_known CHECK ((purpose = ANY (ARRAY['owner'::text, 'service'::text, 'worker'::text, 'reader'::text]))),
    CONSTRAINT roles_role_name_not_empty CHECK ((role_name <> ''::text))
);

CREATE TABLE sharequeue.schema_migrations (
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE sharequeue.service_configs (
    name text NOT NULL,
    value text NOT NULL
);

CREATE TABLE sharequeue.service_leases (
    task text NOT NULL,
    holder text NOT NULL,
    token uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE UNLOGGED TABLE sharequeue.service_run (
    singleton boolean DEFAULT true NOT NULL,
    CONSTRAINT service_run_singleton CHECK (singleton)
);

CREATE TABLE sharequeue.service_tokens (
    token_id uuid NOT NULL,
    principal text NOT NULL,
    secret_hash bytea NOT NULL,
    note text,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    scopes text[],
    CONSTRAINT service_tokens_principal_is_user CHECK ((principal ~~ 'User:_%'::text)),
    CONSTRAINT service_tokens_scopes_known CHECK (((cardinality(scopes) > 0) AND (scopes <@ ARRAY['admin'::text, 'describe'::text, 'heartbeat'::text, 'metrics'::text]))),
    CONSTRAINT service_tokens_secret_hash_is_sha256 CHECK ((octet_length(secret_hash) = 32))
);

CREATE VIEW sharequeue.share_partition_reports (
    reported_at timestamp with time zone,
    group_id text,
    topic text,
    partition integer,
    spso bigint,
    speo bigint,
    log_start bigint,
    log_end bigint,
    lag bigint,
    acquired bigint,
    available bigint,
    archiving bigint,
    delivery_complete_count bigint
);

CREATE VIEW sharequeue.share_partition_times (
    share_partition_id bigint,
    group_id text,
    topic text,
    partition integer,
    created_at timestamp with time zone,
    written_at timestamp with time zone
);

ALTER TABLE sharequeue.share_partitions ALTER COLUMN share_partition_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME sharequeue.share_partitions_share_partition_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE sharequeue.sink_columns (
    group_id text NOT NULL,
    sink text NOT NULL,
    columns text NOT NULL
);

CREATE TABLE sharequeue.sink_folders (
    folder text NOT NULL,
    group_id text NOT NULL
);

CREATE TABLE sharequeue.state_identity (
    only_row boolean DEFAULT true NOT NULL,
    state_id uuid DEFAULT gen_random_uuid() NOT NULL,
    CONSTRAINT state_identity_one_row CHECK (only_row)
);

CREATE VIEW sharequeue.throughput (
    group_id text,
    topic text,
    partition integer,
    since timestamp with time zone,
    reported_at timestamp with time zone,
    seconds double precision,
    finished_records bigint,
    records_per_second double precision
);

CREATE VIEW sharequeue.token_list (
    token_id uuid,
    principal text,
    note text,
    created_at timestamp with time zone,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    state text,
    scopes text[]
);

CREATE TABLE sharequeue.transfers (
    group_id text NOT NULL,
    sink text NOT NULL,
    number bigint NOT NULL,
    locations text[] NOT NULL,
    records bigint NOT NULL,
    claimed_until timestamp with time zone NOT NULL
);

CREATE VIEW sharequeue.waiting_work (
    group_id text,
    topic text,
    partition integer,
    lag bigint,
    ready_records bigint,
    unwritten_letters bigint,
    held_letters bigint,
    waiting_records bigint,
    waiting_until timestamp with time zone,
    held_records bigint,
    blocked_reason text,
    spso bigint,
    speo bigint,
    log_end bigint,
    delivery_complete_count bigint,
    highest_delivery_count integer,
    observed_at timestamp with time zone,
    letters_written_at timestamp with time zone,
    blocked_by text,
    blocked_until timestamp with time zone,
    blocked_offset bigint
);

ALTER TABLE ONLY sharequeue.journal ATTACH PARTITION sharequeue.journal_other DEFAULT;

ALTER TABLE ONLY sharequeue.acls
    ADD CONSTRAINT acls_pkey PRIMARY KEY (principal, operation, permission, resource_type, pattern_type, resource_name);

ALTER TABLE ONLY sharequeue.assignments
    ADD CONSTRAINT assignments_pkey PRIMARY KEY (group_id, member_id, share_partition_id);

ALTER TABLE ONLY sharequeue.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (audit_id);

ALTER TABLE ONLY sharequeue.authorizer
    ADD CONSTRAINT authorizer_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY sharequeue.circuit_breakers
    ADD CONSTRAINT circuit_breakers_pkey PRIMARY KEY (share_partition_id);

ALTER TABLE ONLY sharequeue.clock_offset
    ADD CONSTRAINT clock_offset_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY sharequeue.compactions
    ADD CONSTRAINT compactions_pkey PRIMARY KEY (compaction_id);

ALTER TABLE ONLY sharequeue.dead_letter_batches
    ADD CONSTRAINT dead_letter_batches_pkey PRIMARY KEY (share_partition_id, sequence);

ALTER TABLE ONLY sharequeue.dead_letter_runs
    ADD CONSTRAINT dead_letter_runs_pkey PRIMARY KEY (share_partition_id, sequence, cause, delivery_count);

ALTER TABLE ONLY sharequeue.delivery_count_history
    ADD CONSTRAINT delivery_count_history_pkey PRIMARY KEY (share_partition_id, reported_at, outcome, delivery_count);

ALTER TABLE ONLY sharequeue.delivery_counts
    ADD CONSTRAINT delivery_counts_pkey PRIMARY KEY (share_partition_id, outcome, delivery_count);

ALTER TABLE ONLY sharequeue.gone_topics
    ADD CONSTRAINT gone_topics_pkey PRIMARY KEY (topic, topic_id);

ALTER TABLE ONLY sharequeue.group_configs
    ADD CONSTRAINT group_configs_pkey PRIMARY KEY (group_id, name);

ALTER TABLE ONLY sharequeue.group_settings
    ADD CONSTRAINT group_settings_pkey PRIMARY KEY (group_id);

ALTER TABLE ONLY sharequeue.grown_topics
    ADD CONSTRAINT grown_topics_pkey PRIMARY KEY (group_id, topic, topic_id, first_new);

ALTER TABLE ONLY sharequeue.held_dead_letters
    ADD CONSTRAINT held_dead_letters_pkey PRIMARY KEY (share_partition_id);

ALTER TABLE ONLY sharequeue.in_flight_batches
    ADD CONSTRAINT in_flight_batches_pkey PRIMARY KEY (share_partition_id, first_offset, part);

ALTER TABLE ONLY sharequeue.journal_counted
    ADD CONSTRAINT journal_counted_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY sharequeue.journal_daily_outcomes
    ADD CONSTRAINT journal_daily_outcomes_pkey PRIMARY KEY (share_partition_id, day, outcome, delivery_count);

ALTER TABLE ONLY sharequeue.journal_daily
    ADD CONSTRAINT journal_daily_pkey PRIMARY KEY (share_partition_id, day);

ALTER TABLE ONLY sharequeue.journal_growth
    ADD CONSTRAINT journal_growth_pkey PRIMARY KEY (share_partition_id);

ALTER TABLE ONLY sharequeue.journal_rolled_up
    ADD CONSTRAINT journal_rolled_up_pkey PRIMARY KEY (day);

ALTER TABLE ONLY sharequeue.journal_snapshots
    ADD CONSTRAINT journal_snapshots_pkey PRIMARY KEY (share_partition_id, journal_id);

ALTER TABLE ONLY sharequeue.kafka_cluster
    ADD CONSTRAINT kafka_cluster_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY sharequeue.lease_outputs
    ADD CONSTRAINT lease_outputs_pkey PRIMARY KEY (lease_id, sink);

ALTER TABLE ONLY sharequeue.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (lease_id);

ALTER TABLE ONLY sharequeue.members
    ADD CONSTRAINT members_pkey PRIMARY KEY (group_id, member_id);

ALTER TABLE ONLY sharequeue.observations
    ADD CONSTRAINT observations_pkey PRIMARY KEY (group_id, topic);

ALTER TABLE ONLY sharequeue.record_events
    ADD CONSTRAINT record_events_pkey PRIMARY KEY (share_partition_id, event);

ALTER TABLE ONLY sharequeue.redrive_batches
    ADD CONSTRAINT redrive_batches_pkey PRIMARY KEY (dead_letter_topic, topic_id, partition, sequence);

ALTER TABLE ONLY sharequeue.redriven
    ADD CONSTRAINT redriven_pkey PRIMARY KEY (dead_letter_topic, topic_id, partition);

ALTER TABLE ONLY sharequeue.redrives
    ADD CONSTRAINT redrives_pkey PRIMARY KEY (redrive_id);

ALTER TABLE ONLY sharequeue.reported_losses
    ADD CONSTRAINT reported_losses_pkey PRIMARY KEY (share_partition_id);

ALTER TABLE ONLY sharequeue.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (request_key);

ALTER TABLE ONLY sharequeue.roles
    ADD CONSTRAINT roles_pkey PRIMARY KEY (purpose);

ALTER TABLE ONLY sharequeue.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (name);

ALTER TABLE ONLY sharequeue.service_beat
    ADD CONSTRAINT service_beat_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY sharequeue.service_configs
    ADD CONSTRAINT service_configs_pkey PRIMARY KEY (name);

ALTER TABLE ONLY sharequeue.service_leases
    ADD CONSTRAINT service_leases_pkey PRIMARY KEY (task);

ALTER TABLE ONLY sharequeue.service_replicas
    ADD CONSTRAINT service_replicas_pkey PRIMARY KEY (replica_id);

ALTER TABLE ONLY sharequeue.service_run
    ADD CONSTRAINT service_run_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY sharequeue.service_tokens
    ADD CONSTRAINT service_tokens_pkey PRIMARY KEY (token_id);

ALTER TABLE ONLY sharequeue.service_tokens
    ADD CONSTRAINT service_tokens_secret_hash_key UNIQUE (secret_hash);

ALTER TABLE ONLY sharequeue.share_groups
    ADD CONSTRAINT share_groups_pkey PRIMARY KEY (group_id);

ALTER TABLE ONLY sharequeue.share_partition_history
    ADD CONSTRAINT share_partition_history_pkey PRIMARY KEY (share_partition_id, reported_at);

ALTER TABLE ONLY sharequeue.share_partitions
    ADD CONSTRAINT share_partitions_name UNIQUE (group_id, topic, partition);

ALTER TABLE ONLY sharequeue.share_partitions
    ADD CONSTRAINT share_partitions_pkey PRIMARY KEY (share_partition_id);

ALTER TABLE ONLY sharequeue.sink_columns
    ADD CONSTRAINT sink_columns_pkey PRIMARY KEY (group_id, sink);

ALTER TABLE ONLY sharequeue.sink_folders
    ADD CONSTRAINT sink_folders_pkey PRIMARY KEY (folder);

ALTER TABLE ONLY sharequeue.state_identity
    ADD CONSTRAINT state_identity_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY sharequeue.topics
    ADD CONSTRAINT topics_pkey PRIMARY KEY (topic);

ALTER TABLE ONLY sharequeue.transfers
    ADD CONSTRAINT transfers_pkey PRIMARY KEY (group_id, sink);

CREATE INDEX acls_by_resource ON sharequeue.acls USING btree (resource_type, pattern_type, resource_name);

CREATE INDEX audit_log_by_group ON sharequeue.audit_log USING btree (group_id, audit_id);

CREATE INDEX compactions_by_sink ON sharequeue.compactions USING btree (group_id, sink);

CREATE UNIQUE INDEX dead_letter_batches_one_open ON sharequeue.dead_letter_batches USING btree (share_partition_id) WHERE (written_at IS NULL);

CREATE INDEX failed_attempts_by_end ON sharequeue.failed_attempts USING btree (share_partition_id, past);

CREATE INDEX in_flight_batches_by_lease ON sharequeue.in_flight_batches USING btree (lease_id) WHERE (lease_id IS NOT NULL);

CREATE INDEX in_flight_batches_not_before ON sharequeue.in_flight_batches USING btree (share_partition_id, not_before) WHERE (not_before IS NOT NULL);

CREATE INDEX in_flight_batches_waiting ON sharequeue.in_flight_batches USING btree (share_partition_id, state, first_offset) WHERE (state = ANY (ARRAY[0, 3]));

CREATE INDEX journal_by_age ON ONLY sharequeue.journal USING brin (journal_id) WITH (pages_per_range='16');

CREATE INDEX journal_by_share_partition ON ONLY sharequeue.journal USING btree (share_partition_id, journal_id);

CREATE INDEX journal_daily_by_day ON sharequeue.journal_daily USING btree (day);

CREATE INDEX journal_other_journal_id_idx ON sharequeue.journal_other USING brin (journal_id) WITH (pages_per_range='16');

CREATE INDEX journal_other_share_partition_id_journal_id_idx ON sharequeue.journal_other USING btree (share_partition_id, journal_id);

CREATE INDEX journal_snapshots_by_age ON sharequeue.journal_snapshots USING btree (taken_at);

CREATE INDEX lease_outputs_by_sink ON sharequeue.lease_outputs USING btree (group_id, sink);

CREATE INDEX lease_outputs_pending ON sharequeue.lease_outputs USING btree (group_id, sink) WHERE starts_with(location, 'sink:pending:'::text);

CREATE INDEX leases_by_share_partition ON sharequeue.leases USING btree (share_partition_id, expires_at);

CREATE UNIQUE INDEX redrive_batches_one_open ON sharequeue.redrive_batches USING btree (dead_letter_topic, topic_id, partition) WHERE (sent_at IS NULL);

CREATE INDEX redrives_for_one_group ON sharequeue.redrives USING btree (only_group) WHERE (only_group IS NOT NULL);

CREATE INDEX requests_by_age ON sharequeue.requests USING btree (finished_at);

CREATE INDEX share_partitions_by_advance_due ON sharequeue.share_partitions USING btree (share_partition_id) WHERE advance_due;

CREATE INDEX share_partitions_by_next_expiry ON sharequeue.share_partitions USING btree (next_expiry) WHERE (next_expiry IS NOT NULL);

ALTER INDEX sharequeue.journal_by_age ATTACH PARTITION sharequeue.journal_other_journal_id_idx;

ALTER INDEX sharequeue.journal_by_share_partition ATTACH PARTITION sharequeue.journal_other_share_partition_id_journal_id_idx;

CREATE OR REPLACE VIEW sharequeue.group_list AS
 SELECT g.group_id,
        CASE
            WHEN (count(m.member_id) > 0) THEN 'Stable'::text
            ELSE 'Empty'::text
        END AS state,
    count(m.member_id) AS members,
    g.created_at
   FROM (sharequeue.share_groups g
     LEFT JOIN sharequeue.members m USING (group_id))
  GROUP BY g.group_id;

CREATE TRIGGER acls_learned AFTER INSERT OR DELETE OR UPDATE OR TRUNCATE ON sharequeue.acls FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.groups_learn_acls();

CREATE TRIGGER audit_log_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON sharequeue.audit_log FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.audit_log_is_append_only();

CREATE TRIGGER authorizer_learned AFTER INSERT OR DELETE OR UPDATE OR TRUNCATE ON sharequeue.authorizer FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.groups_learn_acls();

CREATE TRIGGER clock_offset_unfold AFTER INSERT OR DELETE OR UPDATE ON sharequeue.clock_offset FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.clock_unfold();

CREATE TRIGGER delivery_counts_journal AFTER INSERT OR UPDATE ON sharequeue.delivery_counts FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_outcome();

CREATE TRIGGER group_configs_audit AFTER INSERT OR DELETE OR UPDATE ON sharequeue.group_configs FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.audit_group_config();

CREATE TRIGGER group_configs_in_order BEFORE INSERT OR DELETE OR UPDATE ON sharequeue.group_configs FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_configs_lock_group();

CREATE TRIGGER group_configs_settings AFTER INSERT OR DELETE OR UPDATE ON sharequeue.group_configs FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_settings_follow();

CREATE TRIGGER group_settings_acls BEFORE INSERT ON sharequeue.group_settings FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_settings_learn_acls();

CREATE TRIGGER group_settings_journal_pause AFTER UPDATE OF paused_reason ON sharequeue.group_settings FOR EACH ROW WHEN ((old.paused_reason IS DISTINCT FROM new.paused_reason)) EXECUTE FUNCTION sharequeue_internal.journal_pause();

CREATE TRIGGER group_settings_unfold AFTER UPDATE ON sharequeue.group_settings REFERENCING OLD TABLE AS settings_before NEW TABLE AS settings_now FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.group_settings_unfold();

CREATE TRIGGER in_flight_batches_journal AFTER INSERT ON sharequeue.in_flight_batches FOR EACH ROW WHEN ((NOT new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_batch();

CREATE TRIGGER in_flight_batches_journal_delete AFTER DELETE ON sharequeue.in_flight_batches FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_batch();

CREATE TRIGGER in_flight_batches_journal_update AFTER UPDATE ON sharequeue.in_flight_batches FOR EACH ROW WHEN ((old.journalled = new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_batch();

CREATE TRIGGER leases_journal AFTER INSERT ON sharequeue.leases FOR EACH ROW WHEN ((NOT new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_lease();

CREATE TRIGGER leases_journal_delete AFTER DELETE ON sharequeue.leases FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_lease();

CREATE TRIGGER leases_journal_update AFTER UPDATE ON sharequeue.leases FOR EACH ROW WHEN ((old.journalled = new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_lease();

CREATE TRIGGER share_groups_named BEFORE INSERT ON sharequeue.share_groups FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.share_group_named();

CREATE TRIGGER share_groups_settings AFTER INSERT ON sharequeue.share_groups FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_settings_follow();

CREATE TRIGGER share_partitions_gone AFTER DELETE ON sharequeue.share_partitions FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.share_partition_gone();

CREATE TRIGGER share_partitions_journal AFTER INSERT OR DELETE ON sharequeue.share_partitions FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_share_partition_change();

CREATE TRIGGER share_partitions_journal_status AFTER UPDATE OF status ON sharequeue.share_partitions FOR EACH ROW WHEN ((old.status <> new.status)) EXECUTE FUNCTION sharequeue_internal.journal_share_partition_change();

CREATE TRIGGER share_partitions_journal_update AFTER UPDATE OF delivery_complete_count, lost_records, dead_letter_sequence, next_expiry, state_epoch, redeliverable, advance_due, paused_reason, topic_id ON sharequeue.share_partitions FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_share_partition_change();

CREATE TRIGGER wake_consumers AFTER UPDATE OF paused_reason ON sharequeue.group_settings FOR EACH ROW WHEN (((new.paused_reason IS NULL) AND (old.paused_reason IS NOT NULL))) EXECUTE FUNCTION sharequeue_internal.wake_consumers();

CREATE TRIGGER wake_consumers AFTER INSERT OR UPDATE ON sharequeue.in_flight_batches FOR EACH ROW WHEN ((new.state = 0)) EXECUTE FUNCTION sharequeue_internal.wake_consumers();

CREATE TRIGGER wake_consumers AFTER UPDATE OF log_end, paused_reason, state_epoch ON sharequeue.share_partitions FOR EACH ROW WHEN (((new.log_end > old.log_end) OR ((new.paused_reason IS NULL) AND (old.paused_reason IS NOT NULL)) OR (new.state_epoch <> old.state_epoch))) EXECUTE FUNCTION sharequeue_internal.wake_consumers();

ALTER TABLE ONLY sharequeue.assignments
    ADD CONSTRAINT assignments_member_fkey FOREIGN KEY (group_id, member_id) REFERENCES sharequeue.members(group_id, member_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.assignments
    ADD CONSTRAINT assignments_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.circuit_breakers
    ADD CONSTRAINT circuit_breakers_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.compactions
    ADD CONSTRAINT compactions_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.dead_letter_batches
    ADD CONSTRAINT dead_letter_batches_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.dead_letter_runs
    ADD CONSTRAINT dead_letter_runs_batch_fkey FOREIGN KEY (share_partition_id, sequence) REFERENCES sharequeue.dead_letter_batches(share_partition_id, sequence) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.delivery_count_history
    ADD CONSTRAINT delivery_count_history_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.delivery_counts
    ADD CONSTRAINT delivery_counts_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.failed_attempts
    ADD CONSTRAINT failed_attempts_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.group_settings
    ADD CONSTRAINT group_settings_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.held_dead_letters
    ADD CONSTRAINT held_dead_letters_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.members
    ADD CONSTRAINT members_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.observations
    ADD CONSTRAINT observations_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.record_events
    ADD CONSTRAINT record_events_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.redrive_batches
    ADD CONSTRAINT redrive_batches_redrive_fkey FOREIGN KEY (redrive_id) REFERENCES sharequeue.redrives(redrive_id);

ALTER TABLE ONLY sharequeue.reported_losses
    ADD CONSTRAINT reported_losses_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.share_partition_history
    ADD CONSTRAINT share_partition_history_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

ALTER TABLE ONLY sharequeue.share_partitions
    ADD CONSTRAINT share_partitions_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;
