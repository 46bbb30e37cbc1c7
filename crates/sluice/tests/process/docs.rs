//! Agreement of the documentation with the program.

use crate::common::BINARY;
use std::path::Path;
use std::process::Command;

const CONFIGURATION: &str = include_str!("../../../../docs/reference/configuration.md");
const API: &str = include_str!("../../../../docs/reference/api.md");

/// Pages with configurations in them.
const PAGES: [(&str, &str); 3] = [
    ("configuration", CONFIGURATION),
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
    let page = include_str!("../../../../docs/reference/durability.md");
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

/// Checks that links to a page or to a heading of it have a target.
#[test]
fn every_link_of_the_page_on_durability_leads_somewhere() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let page = include_str!("../../../../docs/reference/durability.md");
    for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let name = if file.is_empty() { "durability.md" } else { file };
        let text =
            std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{link}: {error}"));
        let anchor = |line: &str| {
            let kept = |letter: char| match letter {
                ' ' => Some('-'),
                _ if letter.is_alphanumeric() || "-_".contains(letter) => Some(letter.to_ascii_lowercase()),
                _ => None,
            };
            line.trim_start_matches('#').trim().chars().filter_map(kept).collect::<String>()
        };
        let headings = text.lines().filter(|line| line.starts_with('#'));
        assert!(heading.is_empty() || headings.map(anchor).any(|it| it == heading), "{link} leads nowhere");
    }
}
