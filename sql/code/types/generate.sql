-- All generated code of an event type: the list of its pieces, each written in the room of its caller (see
-- core/generated.sql). It is generated when something is defined; what runs for each batch is static PL/pgSQL with
-- cached plans.
-- Locks: those of creating and dropping what is generated.
-- Writes: nothing.

create or replace function pgps_internal.names_of(event_type pgps_internal.event_type) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('type_id', (names_of.event_type).type_id, 'name', quote_ident(t.name), 'label',
        quote_literal(t.name),
        'endpoint', t.endpoint::text, 'log', t.log::text, 'kept', format('pgps_internal.%I', t.name || '_kept'),
        'audit', format('pgps_internal.%I', t.name || '_audit'), 'entry',
            format('pgps_internal.%I', t.name || '_entry'),
        'stage', format('pgps_stage.%I', t.name), 'columns', pgps_internal.column_list(t.endpoint),
        'l_columns', pgps_internal.column_list(t.endpoint, 'l.'), 'r_columns',
            pgps_internal.column_list(t.endpoint, 'r.'))
        || (select jsonb_build_object('attributes', coalesce(string_agg('l.' || quote_ident(a.name), ', '), ''),
            'each_attribute', coalesce(string_agg('l.' || quote_ident(a.name) || ', ', ''), ''),
            'own_attributes', coalesce(string_agg(quote_ident(a.name) || ', ', ''), ''),
            'more_attributes', coalesce(string_agg(', l.' || quote_ident(a.name), ''), ''))
                from pgps_internal.attributes_of(t.endpoint) a)
        || pgps_internal.as_json(t.endpoint)
    from (select (names_of.event_type).*) t
$$;
comment on function pgps_internal.names_of(pgps_internal.event_type) is
'What the words in templates stand for. name: of the row type, quoted; label: of the type, as a literal; columns: all
of the endpoint, also as l_columns (of l) and r_columns; attributes: those without the producer''s, of l;
each_attribute: each with a comma behind it, more_attributes: before it; own_attributes: as each_attribute, of no
alias. as_json, to_json and others: see pgps_internal.as_json. Tables: endpoint, log, kept, audit; of an immediate
type entry and stage.';

create or replace function pgps_internal.pieces_of(event_type pgps_internal.event_type)
returns setof pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pieces_of.event_type;
    v_names jsonb := pgps_internal.names_of(pieces_of.event_type);
begin
    return next pgps_internal.write_part_ids(v_names);
    return next pgps_internal.write_rows(v_names);
    return next pgps_internal.write_events(v_names);
    return next pgps_internal.write_unfold(v_names);
    return next pgps_internal.write_slice(v_names);
    return next pgps_internal.write_statement(v_names);
    return next pgps_internal.write_push(v_names);
    return next pgps_internal.write_carry(v_names);
    if v_type.visibility = 'immediate' then
        return next pgps_internal.write_bring(v_names);
    end if;
    return next pgps_internal.write_queue_in(v_type, v_names);
    return next pgps_internal.write_queue_out(v_type, v_names);
    return next pgps_internal.write_queue_exception(v_type, v_names);
    return next pgps_internal.write_log_view(v_type, v_names);
    return next pgps_internal.write_log_rows(v_names);
    return next pgps_internal.write_statements(v_names);
    return next pgps_internal.write_receive(v_type, v_names);
    return next pgps_internal.write_sent_rows(v_type, v_names);
    return next pgps_internal.write_wire(v_type);
    return next pgps_internal.write_sent(v_type, v_names);
    return next pgps_internal.write_store(v_type, v_names);
    return query select (pgps_internal.write_segment(v_type, slot)).* from generate_series(0, 3) slot;
end
$$;
comment on function pgps_internal.pieces_of(pgps_internal.event_type) is
'The pieces that are generated for an event type itself; those of its endpoint, signatures and subscriptions are written
separately';

create or replace function pgps_internal.build_code(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = build_code.type_id;
    perform pgps_internal.build(p, v_type.type_id) from pgps_internal.pieces_of(v_type) p;
    perform pgps_internal.build_signature(g.signature_id) from pgps_internal.signature g
        where g.type_id = v_type.type_id;
    perform pgps_internal.build_visible(v_type.type_id, c.owner)
    from (select distinct c.owner from pgps_internal.class c where c.type_id = v_type.type_id) c;
    perform pgps_internal.build_callback(m.subscription_id, v_type.type_id)
    from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
    where m.type_id = v_type.type_id and s.callback is not null;
    perform pgps_internal.build_rules(v_type.type_id);
end
$$;
comment on function pgps_internal.build_code(integer) is
'Generates all code of an event type; called again after its attributes have changed';

create or replace function pgps_internal.drop_code(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_piece(g.kind, g.name) from pgps_internal.generated g where g.type_id = drop_code.type_id;
end
$$;
comment on function pgps_internal.drop_code(integer) is
'Drops the generated code of an event type, of its signatures and of its subscriptions; the rules of its endpoint stay';
