//! Tests of the web UI: the running binary in headless Chromium, driven by chromedriver.

#[path = "../support/mod.rs"]
mod support;

mod audit;
mod browser;
mod busy;
mod commands;
mod create;
mod events;
mod fixture;
mod guide;
mod inert;
mod jobs;
mod keys;
mod libraries;
mod odd_values;
mod operations;
mod options;
mod pages;
mod portal;
mod questions;
mod receivers;
mod screenshots;
mod search;
mod shortcuts;
mod sign_in;
mod states;
mod tenants;
mod texts;
mod tokens;
mod verify;
