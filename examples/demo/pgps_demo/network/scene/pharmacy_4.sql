-- As pharmacist.
create table pharmacy.dispensed (
    arrival bigint generated always as identity primary key,
    prescriber text not null,
    nhs_number text not null,
    drug text not null,
    dose integer not null,
    prescribed_at timestamp not null
);
create function pharmacy.dispense(orders pgps_event.dispensing[]) returns void
language sql
begin atomic
    insert into pharmacy.dispensed (prescriber, nhs_number, drug, dose, prescribed_at)
    select o.prescriber, o.nhs_number, o.drug, o.dose, o.prescribed_at
    from unnest(orders) with ordinality o order by o.ordinality;
end;
