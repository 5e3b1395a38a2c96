-- safe: functions, a role and a table that nothing before them uses
-- SQL functions for every language and for triggers: holdfast.enqueue, holdfast.enqueue_many, holdfast.signal (docs/sql.md).
--
-- What they accept, refuse and insert is what packages/queries does for the HTTP API; packages/queries/test/sql-functions-parity.test.ts runs
-- one table of cases through both and compares the rows. A function that changes is replaced whole, by a later migration.
--
-- Their statements are sets of point look-ups, planned once for each session: planning them anew costs a call half as much again (0.75 ms of processor time for
-- one enqueue, 1.15 with it, 0.24 for a bare INSERT). No join is left to the planner that a batch could make quadratic (docs/decisions/0002).
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Who may write where ----------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.project_role (
  project_id bigint NOT NULL CONSTRAINT project_role_project REFERENCES holdfast.project (id),
  role_name  text NOT NULL CONSTRAINT project_role_name_length CHECK (length(role_name) BETWEEN 1 AND 63),
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT project_role_pkey PRIMARY KEY (project_id, role_name)
);
COMMENT ON TABLE holdfast.project_role IS
  'Database roles that may write into a project through the SQL functions. Written by whoever administers the database; read by each call of a function. Logins that are members of holdfast_enqueue need no row: that role has rights on the tables themselves.';

DO $$
BEGIN
  CREATE ROLE holdfast_sql NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
  NULL; -- roles belong to the cluster: another database of it has made this one
END $$;

/*
 * The id of the project, or a refusal. The rights that count are those of the login (session_user): the functions run as their owner, and PostgreSQL
 * does not tell them which role called, only which login it is and to which roles that login may switch.
 */
CREATE FUNCTION holdfast.writable_project(project text) RETURNS bigint
  LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found record;
  everywhere constant boolean := pg_has_role(session_user, 'holdfast_enqueue', 'MEMBER');
BEGIN
  SELECT p.id, p.suspended_at, everywhere OR EXISTS (
    SELECT FROM holdfast.project_role r JOIN pg_roles g ON g.rolname = r.role_name
    WHERE r.project_id = p.id AND pg_has_role(session_user, g.oid, 'MEMBER')
  ) AS allowed
  INTO found FROM holdfast.project p WHERE p.name = writable_project.project;
  IF NOT coalesce(found.allowed, everywhere) THEN
    -- Whether there is such a project is nobody's business who may not write to it.
    RAISE EXCEPTION USING ERRCODE = 'HF403', MESSAGE = format('%s may not write to a project %L', session_user, project),
      HINT = 'Insert the login, or a role that it is a member of, into holdfast.project_role for that project; or mend the name.';
  ELSIF found.id IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF404', MESSAGE = format('there is no project %L', project),
      HINT = 'Create it (holdfast project create NAME, or POST /manage/v1/projects), or mend the name.';
  ELSIF found.suspended_at IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF403', MESSAGE = format('project %L is suspended', project),
      HINT = 'An operator has stopped new work of it; holdfast project resume NAME lets it go on.';
  END IF;
  RETURN found.id;
END $$;

-- Values -------------------------------------------------------------------------------------------------------------------

/*
 * Refuses a value that a step could not be given: too large (512 KiB of JSON without its blanks), nested deeper than 128 levels, or with a number that no
 * double holds. What jsonb itself refuses (NUL, unpaired surrogates) has not come this far. Small values cost one conversion to text.
 */
CREATE FUNCTION holdfast.refuse_json(given jsonb, what text, invalid text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  shown constant text := given::text;
  bytes integer := octet_length(shown);
BEGIN
  IF bytes <= 256 THEN
    RETURN; -- too short for 129 levels, and for the 309 digits that a number beyond a double is written with
  END IF;
  IF bytes > 524288 THEN
    -- jsonb shows itself with a blank after each comma and colon; what counts is the JSON without them.
    -- They are a third of it at most, so twice the limit is over it either way.
    IF bytes <= 1048576 THEN
      bytes := octet_length(regexp_replace(shown, '("(?:[^"\\]|\\.)*")|\s+', '\1', 'g'));
    END IF;
    IF bytes > 524288 THEN
      RAISE EXCEPTION USING ERRCODE = 'HF413', MESSAGE = format('%s is %s bytes of JSON; at most 524288 are stored', what, bytes),
        HINT = 'Keep large data elsewhere and store its address.';
    END IF;
  END IF;
  IF jsonb_path_exists(given, 'strict $.**{128 to last} ? (@.type() == "object" || @.type() == "array")') THEN
    RAISE EXCEPTION USING ERRCODE = invalid, MESSAGE = format('%s is nested deeper than 128 levels', what);
  END IF;
  IF jsonb_path_exists(given, 'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))') THEN
    RAISE EXCEPTION USING ERRCODE = invalid, MESSAGE = format('%s has a number that is too large for a double', what),
      HINT = 'Write it as a text.';
  END IF;
END $$;

-- Inserting ----------------------------------------------------------------------------------------------------------------

/*
 * What enqueue and enqueue_many share: checks the values, then inserts as engine.enqueue does, and finds out who occupies the keys of those that were not
 * inserted. `path` stands before the place of a faulty one in messages. Not for callers: it trusts its project.
 *
 * Locks: nothing but its own index entries. Rows go in ordered by correlation key, so that two batches with the same new keys wait for one another and do
 * not deadlock (digest R15). Served by: machine_pkey, limit_policy_pkey, instance_correlation.
 */
CREATE FUNCTION holdfast.insert_instances(
  into_project bigint, path text, machines text[], versions integer[], queues text[], states jsonb[], priorities integer[],
  eligible_ats timestamptz[], correlation_keys text[], correlation_scopes text[], concurrency_keys text[], rate_keys text[],
  rate_weights integer[], trace text, notify boolean
) RETURNS TABLE (place integer, instance_id bigint, inserted boolean)
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  complaint text;
  known text;
  ids bigint[];
  made boolean[];
  still_open boolean[];
  fresh integer;
  ready text[];
  due timestamptz;
  all_ready text[] := '{}';
  first_due timestamptz;
  known_trace constant text :=
    CASE WHEN trace ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN trace END; -- as a header that is none: ignored
BEGIN
  SELECT CASE WHEN path IS NULL THEN '' ELSE format('%s.%s.', path, g.ord - 1) END || c.text INTO complaint
  FROM unnest(machines, versions, queues, priorities, eligible_ats, correlation_keys, correlation_scopes, concurrency_keys, rate_keys, rate_weights)
    WITH ORDINALITY AS g (machine, version, queue, priority, eligible_at, correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, ord)
  CROSS JOIN LATERAL (SELECT concat_ws('; ',
    CASE WHEN coalesce(length(g.machine), 0) NOT BETWEEN 1 AND 200 THEN 'machine: expected a name of 1 to 200 characters' END,
    CASE WHEN g.version < 1 THEN 'version: expected 1 or more' END,
    CASE WHEN length(g.queue) NOT BETWEEN 1 AND 200 THEN 'queue: expected a name of 1 to 200 characters' END,
    CASE WHEN g.priority NOT BETWEEN -32768 AND 32767 THEN 'priority: expected -32768 to 32767' END,
    CASE WHEN g.eligible_at NOT BETWEEN '0001-01-01T00:00:00Z' AND '9999-12-31T23:59:59.999999Z'
      THEN 'eligible_at: expected an instant of the years 1 to 9999' END,
    CASE WHEN length(g.correlation_key) NOT BETWEEN 1 AND 500 THEN 'correlation_key: expected 1 to 500 characters' END,
    CASE WHEN NOT g.correlation_scope::text[] <@ '{done,failed,cancelled}'::text[] OR cardinality(g.correlation_scope::text[]) > 3
      THEN 'correlation_scope: expected at most three of done, failed, cancelled' END,
    CASE WHEN length(g.concurrency_key) NOT BETWEEN 1 AND 500 THEN 'concurrency_key: expected 1 to 500 characters' END,
    CASE WHEN length(split_part(g.rate_key, ':', 1)) NOT BETWEEN 1 AND 200 OR length(g.rate_key) > 500
      THEN 'rate_limit: expected a name of 1 to 200 characters, with its partition at most 500' END,
    CASE WHEN g.rate_weight NOT BETWEEN 1 AND 1000000000 THEN 'rate_weight: expected 1 to 1000000000' END,
    CASE WHEN g.rate_weight IS NOT NULL AND g.rate_key IS NULL THEN 'rate_weight: needs a rate_limit that it is taken from' END
  ) AS text) c
  WHERE c.text <> '' ORDER BY g.ord LIMIT 1;
  IF complaint IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = complaint, HINT = 'Nothing was inserted.';
  END IF;
  PERFORM holdfast.refuse_json(g.state, CASE WHEN path IS NULL THEN '' ELSE format('%s.%s.', path, g.ord - 1) END || 'state', 'HF400')
  FROM unnest(states) WITH ORDINALITY AS g (state, ord);

  SELECT string_agg(u.machine, ', ') INTO complaint FROM (
    SELECT DISTINCT g.machine FROM unnest(machines, versions) AS g (machine, version)
    WHERE EXISTS (SELECT FROM holdfast.machine) AND NOT EXISTS (
      SELECT FROM holdfast.machine m WHERE m.name = g.machine AND (g.version IS NULL OR m.version = g.version)
    ) ORDER BY 1 LIMIT 20
  ) u;
  IF complaint IS NOT NULL THEN
    SELECT string_agg(d.shown, ', ') INTO known FROM (SELECT format('%s/%s', m.name, m.version) AS shown FROM holdfast.machine m ORDER BY m.name, m.version LIMIT 20) d;
    RAISE EXCEPTION USING ERRCODE = 'HF414', MESSAGE = format('no scheduler has declared %s (in that version); nothing was inserted', complaint),
      HINT = format('Declared are, among others: %s. Deploy a scheduler that exports it, or mend the name.', known);
  END IF;

  SELECT string_agg(DISTINCT g.rate_key || CASE WHEN p.name IS NULL THEN '' ELSE format(' (weight %s, burst %s)', coalesce(g.rate_weight, 1), p.burst) END, ', ')
  INTO complaint
  FROM unnest(rate_keys, rate_weights) AS g (rate_key, rate_weight)
  LEFT JOIN holdfast.limit_policy p ON p.project_id = into_project AND p.kind = 'rate' AND p.name = split_part(g.rate_key, ':', 1)
  WHERE g.rate_key IS NOT NULL AND coalesce(coalesce(g.rate_weight, 1) > p.burst, true);
  IF complaint IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF420',
      MESSAGE = format('the project has no such rate limit, or its burst is smaller than the weight: %s; nothing was inserted', left(complaint, 1000)),
      HINT = 'Declare the limit (PUT /v1/limits/rate/NAME), or ask for less.';
  END IF;

  SELECT array_agg(nextval('holdfast.instance_id_seq')), array_agg(false), array_agg(true) INTO ids, made, still_open
  FROM generate_series(1, cardinality(machines));
  -- An occupant may end between the insert and the look at it; each try meets another one at most.
  FOR attempt IN 1..5 LOOP
    WITH added AS (
      INSERT INTO holdfast.instance AS n (
        id, project_id, machine, version, queue, state, priority, status, eligible_at,
        correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, traceparent
      ) OVERRIDING SYSTEM VALUE
      SELECT g.id, into_project, g.machine, coalesce(g.version, declared.version, 1), coalesce(g.queue, declared.queue, 'default'),
        coalesce(g.state, '{}'), coalesce(g.priority, 0),
        CASE WHEN g.eligible_at > now() THEN 'scheduled' ELSE 'runnable' END::holdfast.instance_status, coalesce(g.eligible_at, now()),
        g.correlation_key, coalesce(g.correlation_scope::holdfast.instance_status[], '{}'), g.concurrency_key, g.rate_key,
        coalesce(g.rate_weight, 1), known_trace
      FROM unnest(
        ids, machines, versions, queues, states, priorities, eligible_ats, correlation_keys, correlation_scopes, concurrency_keys, rate_keys, rate_weights
      ) WITH ORDINALITY AS g (
        id, machine, version, queue, state, priority, eligible_at, correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, ord
      )
      LEFT JOIN LATERAL (
        SELECT m.version, m.queue FROM holdfast.machine m
        WHERE m.name = g.machine AND (g.version IS NULL OR m.version = g.version)
        ORDER BY m.version DESC LIMIT 1
      ) declared ON true
      WHERE still_open[g.ord]
      ORDER BY g.correlation_key, g.ord
      ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
      RETURNING n.queue, n.status, n.eligible_at
    )
    SELECT count(*), array_agg(DISTINCT a.queue) FILTER (WHERE a.status = 'runnable'), min(a.eligible_at) FILTER (WHERE a.status = 'scheduled')
    INTO fresh, ready, due FROM added a;
    all_ready := all_ready || ready;
    first_due := least(first_due, due);
    IF fresh = cardinality(ids) THEN
      made := still_open;
      still_open := '{}';
      EXIT;
    END IF;

    -- A statement of its own, because an occupant may have committed after the insert's snapshot.
    SELECT array_agg(coalesce(f.id, o.id, g.id) ORDER BY g.ord), array_agg(made[g.ord] OR f.id IS NOT NULL ORDER BY g.ord),
      array_agg(still_open[g.ord] AND f.id IS NULL AND o.id IS NULL ORDER BY g.ord)
    INTO ids, made, still_open
    FROM unnest(ids, correlation_keys) WITH ORDINALITY AS g (id, correlation_key, ord)
    LEFT JOIN LATERAL (SELECT i.id FROM holdfast.instance i WHERE still_open[g.ord] AND i.id = g.id OFFSET 0) f ON true
    LEFT JOIN LATERAL (
      SELECT i.id FROM holdfast.instance i
      WHERE still_open[g.ord] AND f.id IS NULL AND i.project_id = into_project AND i.correlation_guard = g.correlation_key
      OFFSET 0
    ) o ON true;
    EXIT WHEN true <> ALL (still_open);
  END LOOP;
  IF true = ANY (still_open) THEN
    RAISE EXCEPTION USING ERRCODE = 'HF409', MESSAGE = 'a correlation key kept changing hands while it was being inserted',
      HINT = 'Try the transaction again.';
  END IF;

  IF notify THEN
    PERFORM pg_notify('holdfast_runnable', q.name) FROM (SELECT DISTINCT unnest(all_ready)) AS q (name);
    IF first_due IS NOT NULL THEN
      PERFORM pg_notify('holdfast_timer', ceil(greatest(extract(epoch FROM first_due - now()), 0) * 1000)::bigint::text);
    END IF;
  END IF;
  RETURN QUERY SELECT (g.ord - 1)::integer, g.id, g.made FROM unnest(ids, made) WITH ORDINALITY AS g (id, made, ord) ORDER BY g.ord;
END $$;

CREATE FUNCTION holdfast.enqueue(
  project text, machine text, state jsonb DEFAULT '{}', version integer DEFAULT NULL, queue text DEFAULT NULL, priority integer DEFAULT 0,
  delay interval DEFAULT NULL, eligible_at timestamptz DEFAULT NULL, correlation_key text DEFAULT NULL, correlation_scope text[] DEFAULT NULL,
  concurrency_key text DEFAULT NULL, rate_limit text DEFAULT NULL, rate_weight integer DEFAULT NULL, traceparent text DEFAULT NULL,
  notify boolean DEFAULT false, OUT id bigint, OUT created boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  into_project constant bigint := holdfast.writable_project(project);
BEGIN
  IF delay IS NOT NULL AND eligible_at IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'give delay or eligible_at, not both', HINT = 'Nothing was inserted.';
  END IF;
  IF NOT isfinite(delay) OR extract(epoch FROM delay) NOT BETWEEN 0 AND 3155760000 THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'delay: expected 0 to 100 years', HINT = 'Nothing was inserted.';
  END IF;
  SELECT i.instance_id, i.inserted INTO id, created FROM holdfast.insert_instances(
    into_project, NULL, ARRAY[machine], ARRAY[version], ARRAY[queue], ARRAY[state], ARRAY[priority], ARRAY[coalesce(eligible_at, now() + delay)],
    ARRAY[correlation_key], ARRAY[correlation_scope::text], ARRAY[concurrency_key], ARRAY[rate_limit], ARRAY[rate_weight], traceparent, notify
  ) i;
END $$;
COMMENT ON FUNCTION holdfast.enqueue IS
  'Inserts an instance in the caller''s transaction, or answers the one that occupies its correlation key (created = false). docs/sql.md.';

CREATE FUNCTION holdfast.enqueue_many(project text, instances jsonb, traceparent text DEFAULT NULL, notify boolean DEFAULT false)
  RETURNS TABLE (place integer, id bigint, created boolean)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  into_project constant bigint := holdfast.writable_project(project);
  complaint text;
BEGIN
  IF instances IS NULL OR instances = '[]' THEN
    RETURN; -- a statement's trigger also fires for no rows, of which jsonb_agg makes null
  END IF;
  IF jsonb_typeof(instances) <> 'array' OR jsonb_array_length(instances) > 10000 THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'instances: expected a JSON array of at most 10000 objects', HINT = 'Nothing was inserted.';
  END IF;
  SELECT format('instances.%s: expected an object, not %s', e.ord - 1, jsonb_typeof(e.given)) INTO complaint
  FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord) WHERE jsonb_typeof(e.given) <> 'object' ORDER BY e.ord LIMIT 1;
  IF complaint IS NULL THEN
    -- Whether each field is known and of its type, so that the casts below cannot fail. A null is a field that was not given, as in SQL; not so a state.
    SELECT format('instances.%s.%s%s: ', e.ord - 1, f.within, left(f.key, 200)) || CASE WHEN k.kind IS NULL THEN 'there is no such field' ELSE 'expected ' || k.kind END
    INTO complaint
    FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord)
    CROSS JOIN LATERAL (
      SELECT '' AS within, a.key, a.value FROM jsonb_each(e.given) a
      UNION ALL
      SELECT 'rate_limit.', b.key, b.value
      FROM jsonb_each(CASE WHEN jsonb_typeof(e.given -> 'rate_limit') = 'object' THEN e.given -> 'rate_limit' ELSE '{}' END) b
    ) f
    LEFT JOIN (VALUES
      ('', 'machine', 'a text'), ('', 'state', 'JSON'), ('', 'input', 'JSON'), ('', 'version', 'a whole number'), ('', 'queue', 'a text'),
      ('', 'priority', 'a whole number'), ('', 'delay_ms', 'a whole number'), ('', 'eligible_at', 'an ISO 8601 instant with its offset'),
      ('', 'correlation_key', 'a text'), ('', 'correlation_scope', 'an array of texts'), ('', 'concurrency_key', 'a text'),
      ('', 'rate_limit', 'an object with a name'), ('rate_limit.', 'name', 'a text'), ('rate_limit.', 'partition', 'a text'),
      ('rate_limit.', 'weight', 'a whole number')
    ) AS k (within, field, kind) ON k.within = f.within AND k.field = f.key
    WHERE k.kind IS NULL OR jsonb_typeof(f.value) <> 'null' AND NOT CASE k.kind
      WHEN 'JSON' THEN true
      WHEN 'an object with a name' THEN jsonb_typeof(f.value) = 'object' AND jsonb_typeof(f.value -> 'name') = 'string'
      WHEN 'an array of texts' THEN jsonb_typeof(f.value) = 'array' AND NOT jsonb_path_exists(f.value, 'strict $[*] ? (@.type() != "string")')
      WHEN 'a whole number' THEN CASE WHEN jsonb_typeof(f.value) = 'number'
        THEN f.value::numeric = trunc(f.value::numeric) AND abs(f.value::numeric) <= CASE f.key WHEN 'delay_ms' THEN 3155760000000 ELSE 2147483647 END
        ELSE false END
      WHEN 'an ISO 8601 instant with its offset' THEN
        jsonb_typeof(f.value) = 'string' AND f.value #>> '{}' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$'
      ELSE jsonb_typeof(f.value) = 'string' END
    ORDER BY e.ord, f.within, f.key LIMIT 1;
  END IF;
  IF complaint IS NULL THEN
    SELECT format('instances.%s: ', e.ord - 1) || CASE
      WHEN e.given ? 'state' AND e.given ? 'input' THEN 'give state or input, not both'
      WHEN e.given ->> 'delay_ms' IS NOT NULL AND e.given ->> 'eligible_at' IS NOT NULL THEN 'give delay_ms or eligible_at, not both'
      WHEN (e.given ->> 'delay_ms')::numeric < 0 THEN 'delay_ms: expected 0 to 3155760000000'
      WHEN position(':' IN e.given #>> '{rate_limit,name}') > 0 THEN 'rate_limit.name: expected a name without a colon' END
    INTO complaint
    FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord)
    WHERE e.given ? 'state' AND e.given ? 'input' OR e.given ->> 'delay_ms' IS NOT NULL AND e.given ->> 'eligible_at' IS NOT NULL
      OR (e.given ->> 'delay_ms')::numeric < 0 OR position(':' IN e.given #>> '{rate_limit,name}') > 0
    ORDER BY e.ord LIMIT 1;
  END IF;
  IF complaint IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = complaint, HINT = 'Nothing was inserted. The fields are those of POST /v1/instances.';
  END IF;
  IF jsonb_path_exists(instances, '$[*].eligible_at') THEN -- a block that catches costs a subtransaction
    BEGIN
      PERFORM (e.given ->> 'eligible_at')::timestamptz FROM jsonb_array_elements(instances) AS e (given);
    EXCEPTION WHEN data_exception THEN
      RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'eligible_at: there is no such instant: ' || SQLERRM, HINT = 'Nothing was inserted.';
    END;
  END IF;

  RETURN QUERY WITH given AS MATERIALIZED (
    SELECT array_agg(e.given ->> 'machine' ORDER BY e.ord) AS machines,
      array_agg((e.given ->> 'version')::numeric::integer ORDER BY e.ord) AS versions,
      array_agg(e.given ->> 'queue' ORDER BY e.ord) AS queues,
      array_agg(CASE WHEN e.given ? 'input' THEN e.given -> 'input' ELSE e.given -> 'state' END ORDER BY e.ord) AS states,
      array_agg((e.given ->> 'priority')::numeric::integer ORDER BY e.ord) AS priorities,
      array_agg(coalesce((e.given ->> 'eligible_at')::timestamptz, now() + (e.given ->> 'delay_ms')::float8 * interval '1 millisecond') ORDER BY e.ord)
        AS eligible_ats,
      array_agg(e.given ->> 'correlation_key' ORDER BY e.ord) AS correlation_keys,
      array_agg(CASE WHEN jsonb_typeof(e.given -> 'correlation_scope') = 'array'
        THEN ARRAY(SELECT jsonb_array_elements_text(e.given -> 'correlation_scope'))::text END ORDER BY e.ord) AS correlation_scopes,
      array_agg(e.given ->> 'concurrency_key' ORDER BY e.ord) AS concurrency_keys,
      array_agg((e.given #>> '{rate_limit,name}') || coalesce(':' || (e.given #>> '{rate_limit,partition}'), '') ORDER BY e.ord) AS rate_keys,
      array_agg((e.given #>> '{rate_limit,weight}')::numeric::integer ORDER BY e.ord) AS rate_weights
    FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord)
  )
  SELECT i.place, i.instance_id, i.inserted FROM given g, holdfast.insert_instances(
    into_project, 'instances', g.machines, g.versions, g.queues, g.states, g.priorities, g.eligible_ats, g.correlation_keys, g.correlation_scopes,
    g.concurrency_keys, g.rate_keys, g.rate_weights, traceparent, notify
  ) i ORDER BY i.place;
END $$;
COMMENT ON FUNCTION holdfast.enqueue_many IS
  'Inserts up to 10,000 instances, given as the JSON objects of POST /v1/instances, in the caller''s transaction: all, but for those whose key is occupied, or none. docs/sql.md.';

-- Signals ------------------------------------------------------------------------------------------------------------------

/*
 * As engine.deliver_signal_by_id and _by_key, in steps: the target is locked first, and each later statement has a snapshot of after the lock, so that it sees
 * what whoever held it before has committed (digest R1, R29, N11). At REPEATABLE READ, where snapshots do not move, the lock fails with 40001 instead.
 * Served by: instance_pkey or instance_correlation, signal_receipt_pkey.
 */
CREATE FUNCTION holdfast.signal(
  project text, name text, payload jsonb DEFAULT '{}', id bigint DEFAULT NULL, correlation_key text DEFAULT NULL, dedup_key text DEFAULT NULL,
  traceparent text DEFAULT NULL, notify boolean DEFAULT false, missing_ok boolean DEFAULT false, OUT delivered boolean, OUT duplicate boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  of_project constant bigint := holdfast.writable_project(project);
  target record;
  woken text;
  complaint constant text := concat_ws('; ',
    CASE WHEN coalesce(length(signal.name), 0) NOT BETWEEN 1 AND 200 THEN 'name: expected 1 to 200 characters' END,
    CASE WHEN num_nonnulls(signal.id, signal.correlation_key) <> 1 THEN 'give exactly one of id and correlation_key' END,
    CASE WHEN length(signal.correlation_key) NOT BETWEEN 1 AND 500 THEN 'correlation_key: expected 1 to 500 characters' END,
    CASE WHEN length(signal.dedup_key) NOT BETWEEN 1 AND 500 THEN 'dedup_key: expected 1 to 500 characters' END);
BEGIN
  IF complaint <> '' THEN
    RAISE EXCEPTION USING ERRCODE = 'HF410', MESSAGE = complaint, HINT = 'The signal was not stored.';
  END IF;
  PERFORM holdfast.refuse_json(signal.payload, 'payload', 'HF410');

  IF signal.id IS NOT NULL THEN
    SELECT i.id INTO target FROM holdfast.instance i
    WHERE i.id = signal.id AND i.project_id = of_project AND i.status NOT IN ('done', 'failed', 'cancelled') FOR NO KEY UPDATE;
  ELSE
    SELECT i.id INTO target FROM holdfast.instance i
    WHERE i.correlation_guard = signal.correlation_key AND i.project_id = of_project AND i.status NOT IN ('done', 'failed', 'cancelled')
    FOR NO KEY UPDATE;
  END IF;
  delivered := target.id IS NOT NULL;
  duplicate := false;
  IF NOT delivered THEN
    IF coalesce(missing_ok, false) THEN
      RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'HF404', MESSAGE = format('there is no live instance %s in project %L; the signal was not stored',
        coalesce(signal.id::text, format('with the correlation key %L', signal.correlation_key)), project),
      HINT = 'It has ended, or there never was one. With missing_ok => true that is an answer (delivered = false) and no error.';
  END IF;
  IF signal.dedup_key IS NOT NULL THEN
    INSERT INTO holdfast.signal_receipt (target_id, dedup_key) VALUES (target.id, signal.dedup_key) ON CONFLICT (target_id, dedup_key) DO NOTHING;
    IF NOT FOUND THEN
      duplicate := true;
      RETURN;
    END IF;
  END IF;
  INSERT INTO holdfast.signal (target_id, name, payload, dedup_key, traceparent) VALUES (
    target.id, signal.name, coalesce(signal.payload, '{}'), signal.dedup_key,
    CASE WHEN signal.traceparent ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN signal.traceparent END
  );
  UPDATE holdfast.instance i SET status = 'runnable', eligible_at = now(), updated_at = now()
  WHERE i.id = target.id AND i.status = 'awaiting_signal' AND signal.name = ANY (i.awaits)
  RETURNING i.queue INTO woken;
  IF notify AND woken IS NOT NULL THEN
    PERFORM pg_notify('holdfast_runnable', woken);
  END IF;
END $$;
COMMENT ON FUNCTION holdfast.signal IS
  'Puts a signal into the inbox of a live instance, in the caller''s transaction, and wakes the instance if it waits for that name. docs/sql.md.';

-- Grants -------------------------------------------------------------------------------------------------------------------

REVOKE ALL ON FUNCTION
  holdfast.writable_project, holdfast.refuse_json, holdfast.insert_instances, holdfast.enqueue, holdfast.enqueue_many, holdfast.signal FROM PUBLIC;
-- Through the functions only, and into the projects of holdfast.project_role only.
GRANT USAGE ON SCHEMA holdfast TO holdfast_sql;
GRANT EXECUTE ON FUNCTION holdfast.enqueue, holdfast.enqueue_many, holdfast.signal TO holdfast_sql, holdfast_enqueue;
