//! Agreement of docs/reference/functions.md with the registry.

use std::path::Path;

const BEGIN: &str =
    "<!-- functions: made by `cargo test -p sluice-functions --test table` with SLUICE_WRITE_DOCS=1 -->\n";
const END: &str = "<!-- end of functions -->\n";

/// Checks the table of all functions. With `SLUICE_WRITE_DOCS=1` the table is written instead.
#[test]
fn the_table_of_functions_is_that_of_the_registry() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/functions.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (head, rest) = page.split_once(BEGIN).expect("the page has the beginning of the table");
    let (found, tail) = rest.split_once(END).expect("the page has the end of the table");
    let table = sluice_functions::table();
    if std::env::var_os("SLUICE_WRITE_DOCS").is_some() {
        return std::fs::write(&path, [head, BEGIN, &table, END, tail].concat()).expect("it is written");
    }
    assert_eq!(
        found, table,
        "the table in docs/reference/functions.md is stale: run this test with SLUICE_WRITE_DOCS=1"
    );
}

/// Checks that each function that is only a layer has a section, or a line that explains it.
#[test]
fn every_function_is_described_in_full() {
    for function in sluice_functions::describe() {
        assert!(function.about.ends_with('.') && !function.about.contains('|'), "{function:?}");
        let items = function.options.iter().chain(&function.orders);
        for item in items {
            assert!(!item.name.is_empty() && !item.about.is_empty(), "{}: {item:?}", function.keys);
        }
        assert!(function.layers_min <= function.layers_max, "{function:?}");
    }
}
