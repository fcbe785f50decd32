//! What the imports say about rooms and circles.

use crate::imports::Import;
use std::collections::{BTreeMap, BTreeSet};

fn room(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

/// Returns the imports that do not go down the list.
pub(crate) fn wrong_ways(
    imports: &[Import],
    levels: &[Vec<String>],
    outside: &[&str],
) -> Vec<String> {
    let level = |room: &str| {
        levels
            .iter()
            .position(|rooms| rooms.iter().any(|r| r == room))
    };
    let mut found = Vec::new();
    for import in imports {
        let (from, to) = (room(&import.from), room(&import.to));
        if from == to || to.is_empty() || outside.contains(&from) {
            continue;
        }
        let way = match (level(from), level(to)) {
            (Some(from), Some(to)) if from < to => continue,
            (Some(from), Some(to)) if from == to => "sideways",
            _ => "up",
        };
        found.push(format!("{} goes {way} from {from} to {to}", import.place));
    }
    found
}

/// Returns the imports of names at the crate's root.
pub(crate) fn crate_root(imports: &[Import], outside: &[&str]) -> Vec<String> {
    let at_root = imports.iter().filter(|import| import.to.is_empty());
    let inside = at_root.filter(|import| !outside.contains(&room(&import.from)));
    inside.map(|import| import.place.clone()).collect()
}

/// Returns the circles of modules that are not inside one folder of a room.
pub(crate) fn circles(imports: &[Import], outside: &[&str]) -> Vec<String> {
    let graph = Graph::new(imports, outside);
    let mut found = BTreeSet::new();
    for module in graph.next.keys() {
        let circle = graph.circle(module);
        if circle.len() > 1 && !in_one_folder(&circle) {
            found.insert(describe(&circle, imports));
        }
    }
    found.into_iter().collect()
}

struct Graph<'a> {
    next: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Graph<'a> {
    fn new(imports: &'a [Import], outside: &[&str]) -> Self {
        let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for import in imports {
            if !outside.contains(&import.from.as_str()) && !import.to.is_empty() {
                next.entry(&import.from).or_default().insert(&import.to);
            }
        }
        Self { next }
    }

    fn reachable(&self, start: &'a str) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(module) = open.pop() {
            let next = self.next.get(module).into_iter().flatten();
            open.extend(next.filter(|module| seen.insert(**module)));
        }
        seen
    }

    /// Returns the modules that `module` reaches and that reach it.
    fn circle(&self, module: &'a str) -> BTreeSet<&'a str> {
        let reached = self.reachable(module).into_iter();
        reached
            .filter(|other| self.reachable(other).contains(module))
            .collect()
    }
}

fn in_one_folder(circle: &BTreeSet<&str>) -> bool {
    let folder = |module: &&str| {
        module
            .split("::")
            .take(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let folders: BTreeSet<Vec<String>> = circle.iter().map(folder).collect();
    folders.len() == 1 && folders.iter().all(|folder| folder.len() == 2)
}

fn describe(circle: &BTreeSet<&str>, imports: &[Import]) -> String {
    let modules: Vec<&str> = circle.iter().copied().collect();
    let inside = |import: &&Import| {
        circle.contains(import.from.as_str()) && circle.contains(import.to.as_str())
    };
    let uses: Vec<String> = imports
        .iter()
        .filter(inside)
        .map(|import| format!("{} uses {}", import.place, import.to))
        .collect();
    format!("{} ({})", modules.join(", "), uses.join(", "))
}
