//! The next build's migrations: the names that follow their numbers, and the statements.

pub const LATER: [(&str, &str); 2] = [
    (
        "delivery_priority",
        include_str!("later/delivery_priority.sql"),
    ),
    ("webhook_contact", include_str!("later/webhook_contact.sql")),
];
