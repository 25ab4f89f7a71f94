//! Rows of queries as structs.

/// Declares a struct and its conversion from a row: each field is read from the column of the same
/// name.
macro_rules! row {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident {
        $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$field_attribute])* $field_visibility $field: $type),+
        }

        impl From<&tokio_postgres::Row> for $name {
            fn from(row: &tokio_postgres::Row) -> $name {
                $name { $($field: row.get(stringify!($field))),+ }
            }
        }
    };
}

pub(crate) use row;
