-- Beyond a number of rows of a user and a day, further changes of the same kind are counted in one row, which describes the last of them.
alter table walhook.audit
    -- The changes that the row stands for.
    add column count   bigint not null default 1,
    -- When the last of them was made. Null if there is one.
    add column last_at timestamptz;
