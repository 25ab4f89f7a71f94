//! Code that verifies deliveries, in seven languages. Each snippet is a file that a test runs
//! unchanged.

/// A snippet in one language.
pub struct Snippet {
    pub language: &'static str,
    pub file: &'static str,
    pub text: &'static str,
}

pub static SNIPPETS: [Snippet; 7] = [
    Snippet {
        language: "curl",
        file: "verify.sh",
        text: include_str!("../../templates/ui/verify/verify.sh"),
    },
    Snippet {
        language: "Node",
        file: "verify.mjs",
        text: include_str!("../../templates/ui/verify/verify.mjs"),
    },
    Snippet {
        language: "Python",
        file: "verify.py",
        text: include_str!("../../templates/ui/verify/verify.py"),
    },
    Snippet {
        language: "Go",
        file: "verify.go",
        text: include_str!("../../templates/ui/verify/verify.go"),
    },
    Snippet {
        language: "PHP",
        file: "verify.php",
        text: include_str!("../../templates/ui/verify/verify.php"),
    },
    Snippet {
        language: "Ruby",
        file: "verify.rb",
        text: include_str!("../../templates/ui/verify/verify.rb"),
    },
    Snippet {
        language: "Rust",
        file: "verify.rs",
        text: include_str!("../../templates/ui/verify/verify.rs"),
    },
];
