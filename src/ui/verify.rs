//! Code that verifies deliveries, in seven languages. Each snippet is a file that a test runs
//! unchanged.

/// A snippet in one language.
pub struct Snippet {
    pub language: &'static str,
    pub file: &'static str,
    pub text: &'static str,
}

macro_rules! snippets {
    ($($language:literal: $file:literal,)+) => {
        pub static SNIPPETS: &[Snippet] = &[$(Snippet {
            language: $language,
            file: $file,
            text: include_str!(concat!("../../templates/ui/verify/", $file)),
        }),+];
    };
}

snippets! {
    "curl": "verify.sh",
    "Node": "verify.mjs",
    "Python": "verify.py",
    "Go": "verify.go",
    "PHP": "verify.php",
    "Ruby": "verify.rb",
    "Rust": "verify.rs",
}
