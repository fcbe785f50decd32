//! Which module uses which.

use crate::lexer::{Token, tokens};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// One use of another module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    /// The module that imports, such as `call::pick`.
    pub(crate) from: String,
    /// The module that is imported; empty for the crate's root.
    pub(crate) to: String,
    /// Where: file and line.
    pub(crate) place: String,
}

/// A path as it stands in a file, and the name that a `use` gives it.
#[derive(Debug)]
struct Mention {
    segments: Vec<String>,
    name: Option<String>,
    exported: bool,
    line: usize,
}

#[derive(Debug)]
struct Module {
    file: String,
    mentions: Vec<Mention>,
    /// The words outside of `use` items.
    words: BTreeSet<String>,
}

/// All files below `src/`, by the path of their module.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    modules: BTreeMap<Vec<String>, Module>,
}

impl Sources {
    /// Reads a folder with everything in it.
    pub(crate) fn read(src: &Path) -> Self {
        let mut sources = Self::default();
        sources.read_folder(src, src);
        sources
    }

    fn read_folder(&mut self, src: &Path, folder: &Path) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                self.read_folder(src, &path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.strip_prefix(src).expect("below src").to_string_lossy();
                self.add(
                    &name.replace('\\', "/"),
                    &fs::read_to_string(&path).expect("a file"),
                );
            }
        }
    }

    /// Adds one file by its path below `src/`.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        let stem = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let name = stem.split('/').map(str::to_owned).collect();
        let (mentions, words) = Reader::new(tokens(text)).run();
        self.modules.insert(
            name,
            Module {
                file: format!("src/{path}"),
                mentions,
                words,
            },
        );
    }

    /// Returns each use of another module once, in order.
    pub(crate) fn imports(&self) -> Vec<Import> {
        let mut found = BTreeMap::new();
        for (name, module) in &self.modules {
            for mention in &module.mentions {
                if let Some(to) = self.target(name, mention) {
                    let place = format!("{}:{}", module.file, mention.line);
                    let from = name.join("::");
                    found
                        .entry((from.clone(), to.clone()))
                        .or_insert(Import { from, to, place });
                }
            }
        }
        found.into_values().collect()
    }

    /// Returns the module that is used, if it is another one of this crate. A re-export of a
    /// child is no use of it, unless the name stands elsewhere in the file.
    fn target(&self, module: &[String], mention: &Mention) -> Option<String> {
        let path = self.absolute(module, &mention.segments)?;
        let child = path.starts_with(module) && path.len() > module.len();
        let passed_on = mention.exported && child;
        if passed_on
            && !self.modules[module]
                .words
                .contains(mention.name.as_deref()?)
        {
            return None;
        }
        let target = self.resolve(&path, &mut BTreeSet::new());
        (target != module).then(|| target.join("::"))
    }

    /// Returns the path from the crate's root; `None` for other crates and local names.
    fn absolute(&self, module: &[String], segments: &[String]) -> Option<Vec<String>> {
        let mut base = match segments[0].as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len() - 1].to_vec(),
            child => {
                let path = [module, &[child.to_owned()]].concat();
                return self
                    .modules
                    .contains_key(&path)
                    .then(|| [module, segments].concat());
            }
        };
        let rest = segments
            .iter()
            .skip(1)
            .skip_while(|segment| *segment == "super");
        let ups = segments
            .iter()
            .skip(1)
            .take_while(|segment| *segment == "super")
            .count();
        base.truncate(base.len().saturating_sub(ups));
        base.extend(rest.cloned());
        Some(base)
    }

    /// Returns the module where the name at the end of a path stands.
    fn resolve(&self, path: &[String], seen: &mut BTreeSet<Vec<String>>) -> Vec<String> {
        let known = (0..=path.len())
            .rev()
            .find(|end| self.modules.contains_key(&path[..*end]));
        let owner = &path[..known.unwrap_or(0)];
        let name = path.get(owner.len());
        let alias = name.and_then(|name| self.alias(owner, name));
        match alias {
            Some(next) if seen.insert(next.clone()) => self.resolve(&next, seen),
            _ => owner.to_vec(),
        }
    }

    /// Returns what a module's `use` gives the name to.
    fn alias(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let mentions = &self.modules.get(module)?.mentions;
        let named = mentions
            .iter()
            .find(|mention| mention.name.as_deref() == Some(name))?;
        self.absolute(module, &named.segments)
    }
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    mentions: Vec<Mention>,
    words: BTreeSet<String>,
}

impl Reader {
    fn new(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            at: 0,
            mentions: Vec::new(),
            words: BTreeSet::new(),
        }
    }

    fn run(mut self) -> (Vec<Mention>, BTreeSet<String>) {
        let mut exported = false;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "use" => self.use_item(exported),
                "mod" => self.at += 1,
                "pub" => exported = true,
                ";" | "{" | "}" => exported = false,
                _ => self.word_or_path(),
            }
            self.at += 1;
        }
        (self.mentions, self.words)
    }

    fn word_or_path(&mut self) {
        if self.begins_path() {
            self.inline_path();
        } else {
            self.words.insert(self.text(0).to_owned());
        }
    }

    fn text(&self, ahead: usize) -> &str {
        self.tokens
            .get(self.at + ahead)
            .map_or("", |token| token.text.as_str())
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    fn begins_path(&self) -> bool {
        let after = self
            .at
            .checked_sub(1)
            .map(|at| self.tokens[at].text.as_str());
        is_word(self.text(0)) && self.text(1) == "::" && after != Some("::")
    }

    fn inline_path(&mut self) {
        let line = self.line();
        self.words.insert(self.text(0).to_owned());
        let mut segments = vec![self.text(0).to_owned()];
        while self.text(1) == "::" && is_word(self.text(2)) {
            segments.push(self.text(2).to_owned());
            self.at += 2;
        }
        self.mentions.push(Mention {
            segments,
            name: None,
            exported: false,
            line,
        });
    }

    fn use_item(&mut self, exported: bool) {
        self.at += 1;
        if self.text(0) == "<" {
            return; // `use<..>` of a return type, which names no path
        }
        self.tree(&[], exported);
    }

    /// Reads one branch of a `use`, up to the sign after it.
    fn tree(&mut self, before: &[String], exported: bool) {
        let line = self.line();
        let mut segments = before.to_vec();
        loop {
            match self.text(0) {
                "{" => return self.branches(&segments, exported),
                "::" => {}
                "self" if !before.is_empty() => {}
                word if is_word(word) || word == "*" => segments.push(word.to_owned()),
                _ => break,
            }
            self.at += 1;
            if self.text(0) == "as" {
                break;
            }
        }
        let mut name = segments.last().cloned();
        if self.text(0) == "as" {
            name = Some(self.text(1).to_owned());
            self.at += 2;
        }
        self.mentions.push(Mention {
            segments,
            name,
            exported,
            line,
        });
    }

    fn branches(&mut self, before: &[String], exported: bool) {
        self.at += 1;
        while !matches!(self.text(0), "}" | "") {
            self.tree(before, exported);
            if self.text(0) == "," {
                self.at += 1;
            }
        }
        self.at += 1;
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && text != "as"
}
