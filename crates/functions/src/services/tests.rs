//! The registry: names, orders and metrics of all services.

use super::*;
use std::collections::BTreeSet;

/// Returns an order in which names and numbers take the place of words in capitals.
fn example(form: &str) -> String {
    let word = |word: &str| match word {
        "N" => "1".to_owned(),
        "NAME" => "monday".to_owned(),
        word => word.to_owned(),
    };
    form.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn names_differ() {
    let names: BTreeSet<_> = SERVICES.iter().map(|service| service.name).collect();
    assert_eq!(names.len(), SERVICES.len());
    assert!(names.iter().all(|name| service(name).is_some_and(|service| service.name == *name)));
    assert!(service("no-such").is_none());
}

#[test]
fn every_listed_order_is_parsed_and_other_text_is_refused_with_the_list() {
    for service in SERVICES {
        for order in service.orders {
            let text = example(order.name);
            assert_eq!((service.order_of_text)(&text), Ok(text.clone()), "{}", service.name);
            let spaced = format!("  {}  ", text.replace(' ', "   "));
            assert_eq!((service.order_of_text)(&spaced), Ok(text), "{}", service.name);
        }
        for text in ["", "dance", "status now", "copy from x", "fail -1", "resync\u{1b}", "create a b"] {
            let refused = (service.order_of_text)(text).expect_err("there is no such order");
            assert!(!refused.contains('\u{1b}'), "{refused}");
            match service.orders {
                [] => assert_eq!(refused, "this function takes no orders"),
                orders => assert!(orders.iter().all(|order| refused.contains(order.name)), "{refused}"),
            }
        }
    }
}

#[test]
fn a_set_reports_the_metrics_of_its_record_and_its_status_is_read_back() {
    let status = sluice_redundancy::Status::default();
    let mut names = Vec::new();
    status.count(&mut |name, _| names.push(name.to_owned()));
    for name in ["replicate", "mirror"] {
        let service = service(name).expect("it is one");
        assert_eq!(service.metrics.iter().map(|metric| metric.name).collect::<Vec<_>>(), names);
    }
    let json = status.to_string();
    let parsed = SetStatus::parse(&json).expect("a status");
    assert_eq!(serde_json::to_string(&parsed).expect("a status"), json);
    let out = json.replace(r#""state":"in sync""#, r#""state":"out""#);
    let is_given = (service("replicate").expect("it is one").changes)().detached.expect("an order").is_given;
    assert_eq!([is_given(&json), is_given(&out)], [Ok(false), Ok(true)]);
    assert!(is_given("out").is_err());
}
