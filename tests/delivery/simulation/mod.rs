//! The dispatcher's schedule without a store: [`schedule`] compares it with a model after random
//! sequences of operations, and [`hanging`] runs it in virtual time while receivers hang.

mod hanging;
mod schedule;
