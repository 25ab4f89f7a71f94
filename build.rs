//! Generates a constant for each statement in `sql/`: the statement below `-- name: claim` in
//! `sql/store/delivery.sql` becomes `store::delivery::CLAIM`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const HEADER: &str = "-- name: ";

const INTO_MEMORY: &str = "a string can be written to";

/// A script that is run as a whole, not a file of statements.
const SCRIPT: &str = "reference_schema";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=sql");

    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));

    for database in ["store", "primary", "demo"] {
        let modules = modules(&Path::new("sql").join(database))?;
        fs::write(target.join(database).with_extension("rs"), modules)?;
    }

    Ok(())
}

/// Returns a module for each file of the directory, and `ALL`, the name and text of every statement.
fn modules(directory: &Path) -> io::Result<String> {
    let mut paths = fs::read_dir(directory)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();

    let mut code = String::new();
    let mut all = String::new();

    for path in paths {
        let name = path.file_stem().expect("a file has a name");
        if name == SCRIPT {
            continue;
        }

        let text = fs::read_to_string(&path)?;
        let name = name.display();
        let constants = constants(&text);
        write!(code, "pub mod {name} {{\n{constants}}}\n").expect(INTO_MEMORY);

        for line in constants.lines() {
            let constant = line
                .strip_prefix("pub const ")
                .and_then(|line| line.split_once(':'));
            if let Some((constant, _)) = constant {
                let path = format!("{name}::{constant}");
                writeln!(all, "(\"{path}\", {path}),").expect(INTO_MEMORY);
            }
        }
    }

    writeln!(code, "pub const ALL: &[(&str, &str)] = &[\n{all}];").expect(INTO_MEMORY);
    Ok(code)
}

fn constants(file: &str) -> String {
    let mut code = String::new();

    for statement in file.split(HEADER).skip(1) {
        let (name, text) = statement
            .split_once('\n')
            .expect("a statement follows its name");
        let name = name.to_uppercase();
        let text = text.trim_end();
        writeln!(code, "pub const {name}: &str = r####\"{text}\"####;").expect(INTO_MEMORY);
    }

    code
}
