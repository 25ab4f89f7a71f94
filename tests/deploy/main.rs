//! What is shipped beside the binary: settings, unit, rules, dashboard. Each is held to what the binary really does.

mod files;
