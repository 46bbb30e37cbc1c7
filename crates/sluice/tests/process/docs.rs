//! The documentation says what the program does.

use std::path::Path;

const CONFIGURATION: &str = include_str!("../../../../docs/configuration.md");
const API: &str = include_str!("../../../../docs/api.md");

#[test]
fn every_example_of_a_configuration_is_one() {
    let examples: Vec<&str> =
        CONFIGURATION.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let config = sluice::config::parse(example, Path::new("/etc/sluice.toml"));
        assert_eq!(config.expect("nothing is wrong with it").drives.len(), 2);
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
