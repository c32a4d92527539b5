-- breaking: no
-- One word for one thing: internal names.

alter type pgps_internal.cut rename to batch_window;
alter type pgps_internal.taken rename to part_ids;
alter table pgps_internal.filter rename to link_filter;

-- Functions that have another name now, or name an argument otherwise, which CREATE OR REPLACE refuses; and the
-- generated ones of both names.
do $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_proc p where p.pronamespace = 'pgps_internal'::regnamespace and (
        p.proname ~ '^(cut|take)_\d+$' or p.proname = any ('{take,take_due,take_runs,take_batch,take_item,take_rewound,
            take_rows,take_raised,take_draft,callback_takes,confirm,write_cut,write_take,broker,filters_for,
            unfold,try_events,try_each,pass_over,publish_stages,note_slices,size_if_large,open_parts,drop_repeats}'))
    loop
        execute format('drop function %s', v_function);
    end loop;
    delete from pgps_internal.generated g where g.name ~ '^pgps_internal\.(cut|take)_\d+$';
end
$$;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0017')
on conflict (key) do update set value = excluded.value;
