//! A macro for enums whose variants have fixed names in the API, the store and metrics.

/// Defines an enum whose variants each have a name, with `ALL` variants in order and `as_str`. As
/// text and in JSON, a value is its name.
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

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<$type, String> {
                match name {
                    $( $name => Ok($type::$variant), )+
                    _ => Err(format!("expected one of {}", [$( $name ),+].join(", "))),
                }
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let name = <String as serde::Deserialize>::deserialize(deserializer)?;
                name.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(super) use named;
