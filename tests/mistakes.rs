//! Common mistakes show a sentence of this crate among the compiler's errors.
//!
//! Each file of `tests/mistakes/` is one mistake. Its first line, `//! expects: …`, is a part of
//! a sentence of `#[diagnostic::on_unimplemented]` in this crate. With `--cfg mistake` the file
//! does not compile, and the sentence is among the errors. Without it the file compiles, so the
//! mistake is the only error. The compiler's own words are not compared: they change from version
//! to version.
//!
//! The test runs the compiler with the libraries that it was built with. Cargo lists their paths
//! and builds nothing.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread::{self, ScopedJoinHandle},
};

use serde_json::Value;

#[test]
fn each_mistake_is_explained() {
    let compiler = Compiler::new();
    let mistakes = mistakes();
    assert_eq!(mistakes.len(), 10);
    let findings = in_parallel(&mistakes, |mistake| compiler.finding(mistake));
    let findings: Vec<String> = findings.into_iter().flatten().collect();
    assert!(findings.is_empty(), "\n\n{}", findings.join("\n\n"));
}

fn mistakes() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes");
    let entries = fs::read_dir(folder).expect("tests/mistakes");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
}

/// Applies `f` to all items on as many threads as there are cores.
fn in_parallel<'a, T: Sync, R: Send>(items: &'a [T], f: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let size = items.len().div_ceil(cores);
    let f = &f;
    thread::scope(|scope| {
        let start = |part: &'a [T]| scope.spawn(move || part.iter().map(f).collect());
        let parts: Vec<ScopedJoinHandle<'_, Vec<R>>> = items.chunks(size).map(start).collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().expect("no panic"))
            .collect()
    })
}

struct Compiler {
    libraries: BTreeMap<String, String>,
    folder: PathBuf,
}

impl Compiler {
    fn new() -> Self {
        let exe = env::current_exe().expect("the path of this test");
        let folder = exe.parent().expect("a folder").to_owned();
        Self {
            libraries: libraries(&folder),
            folder,
        }
    }

    /// Returns why one mistake fails the test; none if it passes.
    fn finding(&self, file: &Path) -> Option<String> {
        let source = fs::read_to_string(file).expect("a file");
        let first = source.lines().next().unwrap_or_default();
        let expected = first
            .strip_prefix("//! expects: ")
            .expect("a first line `//! expects: …`");
        let corrected = self.compile(file, &[]);
        if !corrected.status.success() {
            return Some(report(
                file,
                "does not compile without its mistake",
                &corrected,
            ));
        }
        let output = self.compile(file, &["--cfg", "mistake"]);
        if output.status.success() {
            return Some(report(file, "compiles with its mistake", &output));
        }
        let text = words(&String::from_utf8_lossy(&output.stderr));
        if text.contains(&words(expected)) {
            return None;
        }
        Some(report(
            file,
            &format!("has no error with `{expected}`"),
            &output,
        ))
    }

    fn compile(&self, file: &Path, more: &[&str]) -> Output {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command.args([
            "--edition=2024",
            "--crate-type=lib",
            "--emit=metadata",
            "--color=never",
        ]);
        command.args(["--cap-lints=allow", "--check-cfg=cfg(mistake)", "--out-dir"]);
        command
            .arg(env!("CARGO_TARGET_TMPDIR"))
            .arg("-L")
            .arg(&self.folder)
            .args(more);
        for (name, path) in &self.libraries {
            command.arg("--extern").arg(format!("{name}={path}"));
        }
        command.arg(file).output().expect("rustc")
    }
}

/// Returns the text with single spaces, and without the lines that lead to the source.
fn words(text: &str) -> String {
    text.split_whitespace()
        .filter(|word| *word != "|")
        .collect::<Vec<_>>()
        .join(" ")
}

fn report(file: &Path, what: &str, output: &Output) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "{name} {what}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Returns the libraries that this test is built with, by name, from the messages of cargo.
fn libraries(folder: &Path) -> BTreeMap<String, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "test",
        "--no-run",
        "--offline",
        "--test=mistakes",
        "--message-format=json",
    ]);
    command.args([
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]);
    command.args(profile(folder));
    let output = command.output().expect("cargo");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "cargo names no libraries:\n{stderr}"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let messages: Vec<Value> = messages.collect();
    messages.iter().filter_map(library).collect()
}

/// Returns the flags with which cargo builds for the profile and target of this test.
fn profile(folder: &Path) -> Vec<String> {
    let names: Vec<_> = folder.iter().map(|name| name.to_string_lossy()).collect();
    let [.., parent, profile, _deps] = &names[..] else {
        return Vec::new();
    };
    let mut flags = match &**profile {
        "debug" => Vec::new(),
        other => vec!["--profile".to_owned(), other.to_owned()],
    };
    if parent.matches('-').count() >= 2 {
        flags.extend(["--target".to_owned(), parent.to_string()]);
    }
    flags
}

/// Returns name and path of the library that a message of cargo reports.
fn library(message: &Value) -> Option<(String, String)> {
    if message["target"]["crate_types"][0] != "lib" {
        return None;
    }
    let files = message["filenames"]
        .as_array()?
        .iter()
        .filter_map(Value::as_str);
    let file = files.into_iter().find(|file| file.ends_with(".rlib"))?;
    let name = message["target"]["name"].as_str()?.replace('-', "_");
    Some((name, file.to_owned()))
}
