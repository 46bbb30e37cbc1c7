//! Agreement of the documentation with the program.

use crate::common::BINARY;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONFIGURATION: &str = include_str!("../../../../docs/reference/configuration.md");
const TROUBLESHOOTING: &str = include_str!("../../../../docs/troubleshooting.md");
const API: &str = include_str!("../../../../docs/reference/api.md");

/// Pages with configurations in them.
const PAGES: [(&str, &str); 4] = [
    ("configuration", CONFIGURATION),
    ("serve-over-tcp", include_str!("../../../../docs/howto/serve-over-tcp.md")),
    ("functions", include_str!("../../../../docs/reference/functions.md")),
    ("nvme-tcp", include_str!("../../../../docs/reference/nvme-tcp.md")),
];

#[test]
fn every_example_of_a_configuration_is_one() {
    for (page, text) in PAGES {
        let examples: Vec<&str> =
            text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!examples.is_empty(), "{page}");
        for example in examples {
            let config = sluice_control::config::parse(example, Path::new("/etc/sluice.toml"));
            let config = config.unwrap_or_else(|problem| panic!("{page}: {problem:?}\n{example}"));
            assert!(!config.drives.is_empty(), "{page}");
        }
    }
}

#[test]
fn every_route_is_on_the_page() {
    let document = serde_json::to_value(sluice_api::document()).expect("a document");
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys() {
            let line = format!("| `{} {path}` |", method.to_uppercase());
            assert!(API.contains(&line), "docs/reference/api.md lacks {line}");
        }
    }
}

/// Checks that each order on the page, as after a refusal, is a command of the tool, with its options.
#[test]
fn every_order_after_a_refusal_is_one() {
    let page = include_str!("../../../../docs/reference/messages.md");
    let orders: Vec<&str> = page.split('`').filter(|text| text.starts_with("sluice ")).collect();
    assert!(orders.len() > 10, "{orders:?}");
    for order in orders {
        let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
        let words: Vec<&str> = order.split(' ').skip(1).take_while(is_word).collect();
        let done = Command::new(BINARY).args(&words).arg("--help").output().expect("the binary is there");
        let help = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && help.contains(&format!("sluice {}", words.join(" "))),
            "{order}: {help}"
        );
        let options: Vec<&str> = order.split(' ').filter(|word| word.starts_with("--")).collect();
        assert!(options.iter().all(|option| help.contains(option)), "{order}: {help}");
    }
}

/// Checks that messages which the pages quote are in the sources. `...` stands for names.
#[test]
fn every_quoted_message_is_one_of_the_program() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(crates).expect("a folder") {
        files_in(&entry.expect("an entry").path().join("src"), "rs", &mut files);
    }
    files.retain(|path| {
        !path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("tests"))
    });
    // A text that goes on in the next line has a backslash before its end.
    let source = |path: &PathBuf| std::fs::read_to_string(path).expect("it is there");
    let lines: String = files.iter().map(|path| source(path).replace("\\\n", "\\ ")).collect();
    let sources = lines.split_whitespace().collect::<Vec<_>>().join(" ").replace(" \\ ", " ");
    let pages = [include_str!("../../../../docs/reference/messages.md"), TROUBLESHOOTING];
    let quoted = pages.iter().flat_map(|page| page.split('`').skip(1).step_by(2));
    let messages: Vec<&str> = quoted.filter(|text| text.starts_with("... ")).collect();
    assert!(messages.len() > 5, "{messages:?}");
    for message in messages {
        for part in message.split("...").map(str::trim).filter(|part| !part.is_empty()) {
            assert!(sources.contains(part), "{message}: no source has {part:?}");
        }
    }
}

/// Adds the files with this extension that are in a folder or below it.
fn files_in(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        match path.is_dir() {
            true => files_in(&path, extension, files),
            false if path.extension().is_some_and(|it| it == extension) => files.push(path),
            false => {}
        }
    }
}

/// Returns the lines of a page outside of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n```").step_by(2).flat_map(str::lines)
}

/// Returns whether a page has this heading, or a mark of that name.
fn has_anchor(text: &str, anchor: &str) -> bool {
    let of_heading = |line: &str| {
        let kept = |letter: char| match letter {
            ' ' => Some('-'),
            _ if letter.is_alphanumeric() || "-_".contains(letter) => Some(letter.to_ascii_lowercase()),
            _ => None,
        };
        line.trim_start_matches('#').trim().chars().filter_map(kept).collect::<String>()
    };
    let mut headings = prose(text).filter(|line| line.starts_with('#'));
    headings.any(|line| of_heading(line) == anchor) || text.contains(&format!("<a id=\"{anchor}\">"))
}

/// Checks that links to a file, to a page or to a heading of it have a target, and that each page is linked.
#[test]
fn every_link_leads_somewhere_and_every_page_is_in_the_index() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let outside = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"];
    let mut pages: Vec<PathBuf> = outside.iter().map(|name| checkout.join(name)).collect();
    files_in(&checkout.join("docs"), "md", &mut pages);
    assert!(pages.len() > 20, "{pages:?}");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    for page in &pages {
        let text = read(page);
        let lines: String = prose(&text).map(|line| format!("{line} ")).collect();
        let links = lines.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://") && !link.contains(' ')) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            assert!(anchor.is_empty() || has_anchor(&read(&target), anchor), "{}: {link}", page.display());
        }
    }
    let index = read(&checkout.join("docs/README.md"));
    for page in pages.iter().filter_map(|page| page.strip_prefix(checkout.join("docs")).ok()) {
        let is_index = page == Path::new("README.md");
        assert!(is_index || index.contains(&format!("]({})", page.display())), "{}", page.display());
    }
}
