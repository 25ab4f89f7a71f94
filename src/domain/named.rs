//! A macro for enums whose variants have fixed names in the API, the store and metrics.

/// Defines an enum whose variants each have a name, with `ALL` variants in order and `as_str`.
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $type:ident { $( $(#[$doc:meta])* $variant:ident = $name:literal ),+ $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type { $( $(#[$doc])* $variant ),+ }

        impl $type {
            pub const ALL: &'static [$type] = &[ $( $type::$variant ),+ ];

            pub const fn as_str(self) -> &'static str {
                match self { $( $type::$variant => $name ),+ }
            }
        }
    };
}

pub(super) use named;
