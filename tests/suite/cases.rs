//! `tests/CASES.md` names the tests that there are, and all of those that have a case's id.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const MAP: &str = include_str!("../CASES.md");

/// The cases of the map, each with its tests.
fn cases() -> BTreeMap<&'static str, BTreeSet<String>> {
    let lines: Vec<_> = MAP
        .lines()
        .filter_map(|line| line.strip_prefix("- **"))
        .collect();
    let cases: BTreeMap<_, _> = lines.iter().map(|line| case(line)).collect();
    assert_eq!(cases.len(), lines.len(), "a case is listed twice");
    cases
}

/// Reads `b01** A title: test, test`, or `b01** A title: open, issue 10`.
fn case(line: &str) -> (&str, BTreeSet<String>) {
    let (id, rest) = line.split_once("** ").expect("an id");
    let (_title, tests) = rest.rsplit_once(": ").expect("a title and its tests");
    assert_eq!(case_of(&format!("{id}_")), Some(id), "no case has this id");
    if tests.starts_with("open, issue ") {
        return (id, BTreeSet::new());
    }
    let tests = tests
        .split(", ")
        .map(|test| test.trim_matches('`').to_owned());
    (id, tests.collect())
}

/// The id with which the name of a test begins, if it does.
fn case_of(name: &str) -> Option<&str> {
    let (id, _) = name.split_once('_')?;
    let number = id.strip_prefix(['b', 'n', 'f'])?;
    let is_id = number.len() >= 2 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_id.then_some(id)
}

/// All tests below a folder of the package, as `module::name`.
fn tests_in(folder: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut tests = BTreeSet::new();
    for file in files(&root) {
        let module = module(file.strip_prefix(&root).unwrap());
        let source = fs::read_to_string(&file).unwrap();
        tests.extend(test_names(&source).map(|name| format!("{module}{name}")));
    }
    tests
}

/// The Rust sources below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The module of a file, each part followed by `::`.
fn module(file: &Path) -> String {
    let stem = file.with_extension("");
    let parts = stem.iter().map(|part| part.to_str().unwrap());
    let parts = parts.filter(|part| !["mod", "main", "lib"].contains(part));
    parts.map(|part| format!("{part}::")).collect()
}

/// The functions of a source that have the attribute of a test.
fn test_names(source: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    source.lines().filter_map(move |line| {
        let line = line.trim();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
            return None;
        }
        let function = line
            .strip_prefix("async ")
            .unwrap_or(line)
            .strip_prefix("fn ")?;
        let name = function.split(['(', '<']).next()?;
        std::mem::take(&mut is_test).then_some(name)
    })
}

/// The suite's tests, and the unit tests with `src::` before them.
fn all_tests() -> BTreeSet<String> {
    let units = tests_in("src")
        .into_iter()
        .map(|test| format!("src::{test}"));
    tests_in("tests/suite").into_iter().chain(units).collect()
}

#[test]
fn each_test_that_the_map_names_is_there() {
    let tests = all_tests();
    assert!(tests.len() > 600, "{} tests were found", tests.len());
    for (id, named) in cases() {
        for test in named {
            assert!(tests.contains(&test), "{id}: there is no test {test}");
        }
    }
}

#[test]
fn the_map_names_each_test_of_a_case() {
    let cases = cases();
    for test in all_tests() {
        let name = test.rsplit("::").next().unwrap();
        if let Some(id) = case_of(name) {
            let listed = cases.get(id).is_some_and(|tests| tests.contains(&test));
            assert!(listed, "tests/CASES.md does not list {test} under {id}");
        }
    }
}

#[test]
fn the_map_has_every_case() {
    let ids: Vec<_> = cases().into_keys().collect();
    let of = |letter: char| ids.iter().filter(|id| id.starts_with(letter)).count();
    assert_eq!([of('b'), of('n'), of('f')], [77, 14, 49]);
}
