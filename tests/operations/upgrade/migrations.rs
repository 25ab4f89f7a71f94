//! Migrations of the build to come, by the name that follows their number.

pub const LATER: [(&str, &str); 2] = [
    ("delivery_priority", include_str!("later/delivery_priority.sql")),
    ("webhook_description", include_str!("later/webhook_description.sql")),
];
