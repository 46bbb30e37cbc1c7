//! The documentation says what the program does.

use std::path::Path;

const CONFIGURATION: &str = include_str!("../../../../docs/configuration.md");
const API: &str = include_str!("../../../../docs/api.md");

/// Pages with configurations in them.
const PAGES: [(&str, &str); 3] = [
    ("configuration", CONFIGURATION),
    ("functions", include_str!("../../../../docs/functions.md")),
    ("nvme-tcp", include_str!("../../../../docs/nvme-tcp.md")),
];

#[test]
fn every_example_of_a_configuration_is_one() {
    for (page, text) in PAGES {
        let examples: Vec<&str> =
            text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!examples.is_empty(), "{page}");
        for example in examples {
            let config = sluice::config::parse(example, Path::new("/etc/sluice.toml"));
            let config = config.unwrap_or_else(|problem| panic!("{page}: {problem:?}\n{example}"));
            assert!(!config.drives.is_empty(), "{page}");
        }
    }
}

#[test]
fn every_route_is_on_the_page() {
    let document = serde_json::to_value(sluice::api::document()).expect("a document");
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys() {
            let line = format!("| `{} {path}` |", method.to_uppercase());
            assert!(API.contains(&line), "docs/api.md lacks {line}");
        }
    }
}
