//! Floors of the crate: `state <- model <- {command, admin, jobs} <- engine`.
//!
//! A file may use its own floor and the floors below. The three folders of the middle floor do not use each
//! other. The tests read the paths and the method calls of every file. Each exception is listed here, and an
//! exception that is gone must leave the list, so that a list only shrinks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Folders, each with its floor.
const FLOORS: [(&str, u8); 6] =
    [("state", 0), ("model", 1), ("command", 2), ("admin", 2), ("jobs", 2), ("engine", 3)];

/// Upward and sideways uses that are still there: the file, and the used module.
const UPWARD: &[(&str, &str)] = &[];

/// Fields of `Controller` that other floors still reach.
const EXPOSED: &[&str] = &["sqs", "cqs", "doorbells", "features", "client_dma", "remote_groups"];

/// Names of methods that the standard library has, too.
const COMMON: [&str; 10] =
    ["as_slice", "blocks", "entry", "expect", "fill", "get", "get_mut", "iter", "queue", "resize"];

/// Variables whose type is known, each with that type.
const TYPES: [(&str, &str); 3] =
    [("subsystem", "Subsystem"), ("controller", "Controller"), ("namespace", "Namespace")];

/// Source file without comments, string literals and unit tests.
struct Source {
    /// Path below `src`, without the extension and without `mod`.
    module: Vec<String>,
    path: String,
    code: String,
}

impl Source {
    fn folder(&self) -> &str {
        &self.module[0]
    }
}

fn rank(folder: &str) -> Option<u8> {
    FLOORS.iter().find(|(name, _)| *name == folder).map(|(_, rank)| *rank)
}

/// Returns whether a file of this folder may not use that folder.
fn is_upward(from: &str, to: &str) -> bool {
    match (rank(from), rank(to)) {
        (Some(own), Some(used)) => used > own || used == own && from != to,
        _ => false,
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
}

fn sources() -> Vec<Source> {
    fn walk(directory: &Path, found: &mut Vec<Source>) {
        for entry in fs::read_dir(directory).expect("a folder of the crate") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                // Folders of unit tests are no code of a floor.
                if !path.ends_with("tests") {
                    walk(&path, found);
                }
            } else {
                found.push(read(&path));
            }
        }
    }
    let mut found = Vec::new();
    for (folder, _) in FLOORS {
        walk(&root().join(folder), &mut found);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn read(path: &Path) -> Source {
    let below = path.strip_prefix(root()).expect("below src").with_extension("");
    let mut module: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let shown = path.strip_prefix(root()).expect("below src").to_string_lossy().into_owned();
    module.pop_if(|last| last == "mod");
    let text = fs::read_to_string(path).expect("a source file");
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    Source { module, path: shown, code: code_of(text) }
}

/// Removes comments and the contents of string literals.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines() {
        let (mut in_string, mut before) = (false, ' ');
        for (at, character) in line.char_indices() {
            if !in_string && line[at..].starts_with("//") {
                break;
            }
            if character == '"' && before != '\\' && before != '\'' {
                in_string = !in_string;
            } else if !in_string {
                code.push(character);
            }
            before = character;
        }
        code.push('\n');
    }
    code
}

/// Returns the paths of a `use` tree or of an expression, from the text behind a prefix.
fn expand(prefix: &[String], text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut start, mut found) = (0, 0, Vec::new());
        for (at, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    found.extend(expand(prefix, &group[start..at]));
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    found.extend(expand(prefix, &group[start..at]));
                    start = at + 1;
                }
                _ => {}
            }
        }
        return found;
    }
    let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
    if end == 0 {
        return Vec::new();
    }
    let path = [prefix, &[text[..end].to_owned()]].concat();
    match text[end..].strip_prefix("::") {
        Some(rest) if rest.starts_with(|it: char| it.is_alphanumeric() || it == '_' || it == '{') => {
            expand(&path, rest)
        }
        _ => vec![path],
    }
}

/// Returns the places at which a word stands in code.
fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |it: char| it.is_alphanumeric() || it == '_';
    code.match_indices(word).map(|(at, _)| at).filter(move |at| !code[..*at].ends_with(is_part))
}

/// Returns the names that `lib.rs` exports, each with its path in the crate.
fn exports() -> BTreeMap<String, Vec<String>> {
    let code = code_of(&fs::read_to_string(root().join("lib.rs")).expect("lib.rs"));
    let paths = places(&code, "pub use ").flat_map(|at| expand(&[], &code[at + "pub use ".len()..]));
    paths.filter_map(|path| Some((path.last()?.clone(), path))).collect()
}

/// Returns the paths in the crate that a file names.
fn paths(source: &Source, exports: &BTreeMap<String, Vec<String>>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for at in places(&source.code, "crate::") {
        found.extend(expand(&[], &source.code[at + "crate::".len()..]));
    }
    for at in places(&source.code, "super::").filter(|at| !source.code[..*at].ends_with("super::")) {
        let (mut rest, mut module) = (&source.code[at..], source.module.clone());
        while let Some(behind) = rest.strip_prefix("super::") {
            module.pop();
            rest = behind;
        }
        found.extend(expand(&module, rest));
    }
    let exported = |path: Vec<String>| exports.get(&path[0]).cloned().unwrap_or(path);
    found.into_iter().filter(|path| !path.is_empty()).map(exported).collect()
}

/// Returns the lines of a file, each with the type of its `impl` block if that is one of [`TYPES`].
fn lines(code: &str) -> impl Iterator<Item = (Option<&'static str>, &str)> {
    let mut own = None;
    code.lines().map(move |line| {
        if !line.starts_with(' ') && !line.is_empty() {
            let head = line.strip_prefix("impl ").and_then(|it| it.strip_suffix(" {"));
            own = TYPES.iter().map(|(_, name)| *name).find(|name| head == Some(name));
        }
        (own, line)
    })
}

/// Returns the methods of a file's `impl` blocks, each with its type if that is one of [`TYPES`].
fn methods(source: &Source) -> Vec<(Option<&'static str>, String)> {
    let of_line = |(own, line): (Option<&'static str>, &str)| {
        let indented = line.strip_prefix("    ").filter(|it| !it.starts_with(' '))?;
        let at = places(indented, "fn ").next()?;
        Some((own, expand(&[], &indented[at + "fn ".len()..]).pop()?.pop()?))
    };
    lines(&source.code).filter_map(of_line).collect()
}

/// Returns the methods of [`TYPES`] that a file calls, as far as the names of variables show the type.
fn typed_calls(source: &Source) -> BTreeSet<(&'static str, String)> {
    let mut found = BTreeSet::new();
    for (own, line) in lines(&source.code) {
        let receivers =
            TYPES.iter().copied().chain(own.into_iter().flat_map(|it| [("self", it), ("Self", it)]));
        for (variable, name) in receivers {
            for at in places(line, variable) {
                let behind = &line[at + variable.len()..];
                let called = behind.strip_prefix('.').or_else(|| behind.strip_prefix("::"));
                let path = called.and_then(|it| expand(&[], it).pop()).and_then(|mut path| path.pop());
                found.extend(path.map(|method| (name, method)));
            }
        }
    }
    found
}

/// Returns whether a file calls a method of this name. The builders of `fmt` have a `finish` without arguments.
fn calls(code: &str, name: &str) -> bool {
    let called = |at: usize| code[at + name.len()..].strip_prefix('(').is_some_and(|it| !it.starts_with(')'));
    let is_call = |at: usize| {
        code[..at].ends_with('.')
            && (called(at) || name != "finish" && code[at + name.len()..].starts_with('('))
            || code[..at].ends_with("Self::") && called(at)
    };
    places(code, name).any(is_call)
}

fn upward_uses() -> BTreeSet<(String, String)> {
    let (sources, exports) = (sources(), exports());
    let mut found = BTreeSet::new();
    for source in &sources {
        for path in paths(source, &exports) {
            if is_upward(source.folder(), &path[0]) {
                found.insert((source.path.clone(), path[..path.len().min(2)].join("::")));
            }
        }
    }
    // A method that only higher floors have is used upwards, too.
    let mut defined: BTreeMap<(Option<&str>, String), BTreeSet<&str>> = BTreeMap::new();
    for source in &sources {
        for (own, name) in methods(source) {
            defined.entry((None, name.clone())).or_default().insert(source.folder());
            defined.entry((own, name)).or_default().insert(source.folder());
        }
    }
    for source in &sources {
        let typed = typed_calls(source);
        for ((own, name), folders) in &defined {
            let is_called = match own {
                Some(own) => typed.contains(&(*own, name.clone())),
                None => !COMMON.contains(&name.as_str()) && calls(&source.code, name),
            };
            if is_called && folders.iter().all(|folder| is_upward(source.folder(), folder)) {
                found.insert((source.path.clone(), format!(".{name}()")));
            }
        }
    }
    found
}

#[test]
fn imports_lead_downwards() {
    let found = upward_uses();
    let listed: BTreeSet<_> =
        UPWARD.iter().map(|(file, used)| (file.to_string(), used.to_string())).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "{} uses lead upwards or sideways: {new:#?}", new.len());
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "these uses are gone, and must leave the list: {gone:#?}");
}

/// Returns the fields of a struct that other floors can reach.
fn exposed_fields(code: &str, name: &str) -> Vec<String> {
    let Some((_, behind)) = code.split_once(&format!("pub struct {name} {{\n")) else { return Vec::new() };
    let fields = behind.lines().take_while(|line| *line != "}").filter_map(|line| line.split_once(':'));
    let is_exposed = |declared: &&str| declared.starts_with("pub") && !declared.starts_with("pub(super)");
    let exposed = fields.map(|(declared, _)| declared.trim()).filter(is_exposed);
    exposed.filter_map(|declared| declared.rsplit(' ').next().map(str::to_owned)).collect()
}

#[test]
fn only_the_model_reaches_the_fields_of_a_controller_and_of_a_subsystem() {
    let text = "pub struct A {\n    pub(super) a: u8,\n    pub(crate) b: u8,\n    pub c: [u8; 3],\n    d: u8,\n}\npub(crate) e: u8,\n";
    assert_eq!(exposed_fields(text, "A"), ["b", "c"]);
    for (file, name, listed) in
        [("model/subsystem.rs", "Subsystem", &[][..]), ("model/controller.rs", "Controller", EXPOSED)]
    {
        let code = read(&root().join(file)).code;
        assert!(code.contains(&format!("pub struct {name} {{")), "{name} is in another file");
        assert_eq!(exposed_fields(&code, name), listed, "fields of {name}");
    }
}

#[test]
fn only_the_model_and_the_engine_touch_the_slab() {
    let touches = |it: &Source| {
        ["command", "admin", "jobs"].contains(&it.folder())
            && ["slab", "slab_mut", "Slab"].iter().any(|word| {
                places(&it.code, word).any(|at| {
                    !it.code[at + word.len()..].starts_with(|it: char| it.is_alphanumeric() || it == '_')
                })
            })
    };
    let found: Vec<_> = sources().into_iter().filter(touches).map(|source| source.path).collect();
    assert!(found.is_empty(), "these files touch the slab: {found:#?}");
}

/// Checks the readers above with text that has a use of each form.
#[test]
fn paths_and_calls_are_found() {
    let text = "use crate::engine::{admin::{self, begin}, turn};\n// crate::jobs::x\nlet a = \"crate::jobs\";\nsuper::super::model::y();\n";
    let module = ["state".to_owned(), "queue".to_owned()].to_vec();
    let source = Source { module, path: String::new(), code: code_of(text) };
    let found: Vec<String> = paths(&source, &BTreeMap::new()).iter().map(|path| path.join("::")).collect();
    let expected =
        ["engine::admin::self", "engine::admin::begin", "engine::turn", "model::y"].map(str::to_owned);
    assert_eq!(found, expected);
    assert!(is_upward("state", "model") && is_upward("admin", "jobs") && is_upward("jobs", "engine"));
    assert!(!is_upward("engine", "state") && !is_upward("model", "model"));
    assert!(calls("x.turn(a)", "turn") && calls("x.arm()", "arm"));
    let code = "impl Subsystem {\n    fn a(&mut self) {\n        self.b();\n    }\n}\nfn c() {\n    controller.d(1);\n}\n";
    let source = Source { module: Vec::new(), path: String::new(), code: code.to_owned() };
    assert_eq!(methods(&source), [(Some("Subsystem"), "a".to_owned())]);
    let expected = [("Controller", "d".to_owned()), ("Subsystem", "b".to_owned())];
    assert!(typed_calls(&source).into_iter().eq(expected));
    assert!(!calls("x.return_(a)", "turn") && !calls("f.finish()", "finish") && !calls("turn(a)", "turn"));
}
