//! Compares the imports of `src/` with the list of rooms in `docs/design.md`.
//!
//! A *room* is a folder or file directly under `src/`. The list has one line for each level; a
//! room may import rooms of lower lines only. Modules may import each other in a circle only
//! inside one folder of a room, such as `policy/affinity/`. Parts behind `#[cfg(test)]`,
//! comments and strings are left out. A path through a re-export leads to the module where the
//! name stands.

#[path = "house/graph.rs"]
mod graph;
#[path = "house/imports.rs"]
mod imports;
#[path = "house/lexer.rs"]
mod lexer;

use graph::{circles, crate_root, wrong_ways};
use imports::{Import, Sources};
use std::{fs, path::Path};

/// The greatest number of rooms, so that a newcomer keeps them in mind.
const MOST_ROOMS: usize = 18;

/// Entries of `src/` that stand outside the list: they may name everything.
const OUTSIDE: [&str; 2] = ["lib", "guide"];

/// The line of `docs/design.md` right above the list.
const HEADING: &str = "Imports only go down this list; rooms on one line do not import each other:";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the rooms of each line of the list, from the top.
fn levels() -> Vec<Vec<String>> {
    let design = fs::read_to_string(root().join("docs/design.md")).expect("docs/design.md");
    let (_, after) = design
        .split_once(HEADING)
        .unwrap_or_else(|| panic!("no line `{HEADING}`"));
    let mut fences = after.split("```");
    let list = fences.nth(1).expect("a fenced list after the heading");
    let lines = list
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().map(str::to_owned));
    lines
        .map(Iterator::collect)
        .filter(|rooms: &Vec<String>| !rooms.is_empty())
        .collect()
}

fn rooms_of_src() -> Vec<String> {
    let entries = fs::read_dir(root().join("src")).expect("src");
    let names = entries.map(|entry| entry.expect("an entry").path());
    let mut rooms: Vec<String> = names
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    rooms.sort();
    rooms
}

fn imports() -> Vec<Import> {
    Sources::read(&root().join("src")).imports()
}

fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}\n", found.join("\n  "));
}

#[test]
fn the_list_names_every_room_and_no_other() {
    let listed = levels().concat();
    let rooms = rooms_of_src();
    let expected = rooms
        .iter()
        .filter(|room| !OUTSIDE.contains(&room.as_str()));
    let unlisted: Vec<String> = expected
        .filter(|room| !listed.contains(room))
        .cloned()
        .collect();
    none("not in the list of docs/design.md", &unlisted);
    let gone: Vec<String> = listed
        .into_iter()
        .filter(|room| !rooms.contains(room))
        .collect();
    none("in the list of docs/design.md, but not in src/", &gone);
}

#[test]
fn there_are_few_rooms() {
    let rooms = rooms_of_src().len() - 1; // lib.rs is the house, not a room
    assert!(rooms <= MOST_ROOMS, "{rooms} rooms; at most {MOST_ROOMS}");
}

#[test]
fn imports_go_down() {
    none(
        "imports that go up or sideways",
        &wrong_ways(&imports(), &levels(), &OUTSIDE),
    );
}

#[test]
fn imports_name_a_room() {
    none(
        "imports from the crate's root hide their room",
        &crate_root(&imports(), &OUTSIDE),
    );
}

#[test]
fn circles_stay_inside_one_folder() {
    none(
        "modules that import each other",
        &circles(&imports(), &OUTSIDE),
    );
}

// The reader of imports itself.

fn sample(files: &[(&str, &str)]) -> Vec<Import> {
    let mut sources = Sources::default();
    for (path, text) in files {
        sources.add(path, text);
    }
    sources.imports()
}

fn pairs(imports: &[Import]) -> Vec<(&str, &str)> {
    imports
        .iter()
        .map(|import| (import.from.as_str(), import.to.as_str()))
        .collect()
}

#[test]
fn every_form_of_path_is_read() {
    let text = "
        use crate::{util::{self, time}, event::Event as E};
        use super::list::{List, *};
        use std::crate_like::x; // use crate::comment::X;
        fn f<'a>(x: &'a str) -> crate::load::Kind { self::inner::g(\"crate::text::X\", '\"') }
        #[cfg(test)] mod tests { use crate::balance::Balance; }
    ";
    let imports = sample(&[
        ("discover/driver.rs", text),
        ("discover/driver/inner.rs", ""),
        ("discover/list.rs", ""),
        ("util/mod.rs", ""),
        ("util/time.rs", ""),
        ("event.rs", ""),
        ("load/mod.rs", ""),
        ("balance/mod.rs", ""),
    ]);
    let driver = "discover::driver";
    let expected = [
        "discover::driver::inner",
        "discover::list",
        "event",
        "load",
        "util",
        "util::time",
    ];
    assert_eq!(pairs(&imports), expected.map(|to| (driver, to)));
}

#[test]
fn a_re_export_leads_to_the_module_of_the_name() {
    let imports = sample(&[
        (
            "policy/mod.rs",
            "mod random; pub use random::Random; pub use turn::Turn; struct A(Turn);",
        ),
        ("policy/random.rs", ""),
        ("policy/turn.rs", ""),
        ("policy/p2c.rs", "use crate::policy::Random;"),
        ("call/mod.rs", "use crate::policy::Policy;"),
    ]);
    let expected = [
        ("call", "policy"),
        ("policy", "policy::turn"),
        ("policy::p2c", "policy::random"),
    ];
    assert_eq!(pairs(&imports), expected);
}

#[test]
fn wrong_ways_are_found() {
    let imports = sample(&[
        ("call.rs", "use crate::cluster::Cluster;"),
        ("cluster.rs", "use crate::call::Guard; use crate::Balance;"),
        ("http.rs", "fn f() { crate::observe::g() }"),
        ("observe.rs", ""),
    ]);
    let levels = [
        vec!["http".into(), "observe".into()],
        vec!["call".into()],
        vec!["cluster".into()],
    ];
    let found = wrong_ways(&imports, &levels, &OUTSIDE);
    assert_eq!(
        found,
        [
            "src/cluster.rs:1 goes up from cluster to call",
            "src/http.rs:1 goes sideways from http to observe",
        ]
    );
    assert_eq!(crate_root(&imports, &OUTSIDE), ["src/cluster.rs:1"]);
}

#[test]
fn circles_are_found_but_inside_a_folder() {
    let imports = sample(&[
        ("call/pick.rs", "use crate::call::wait::Waiting;"),
        ("call/wait.rs", "use super::pick::Pick;"),
        ("call/guard/mod.rs", "use bodies::Bodies;"),
        ("call/guard/bodies.rs", "use super::Guard;"),
    ]);
    assert_eq!(
        circles(&imports, &OUTSIDE),
        [
            "call::pick, call::wait (src/call/pick.rs:1 uses call::wait, src/call/wait.rs:1 uses call::pick)"
        ]
    );
}
