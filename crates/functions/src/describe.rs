//! Descriptions of all functions: one source for the API, the command line, metrics and the documentation.

use crate::services::SERVICES;
use crate::{Item, Kind, Record};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use utoipa::{PartialSchema, ToSchema};

/// A kind of function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Description {
    /// Keys that choose the function in a drive's description: `kind = "pass"`.
    pub keys: String,
    /// Description of the function, one sentence.
    pub about: String,
    /// Layers besides the rest of the stack that the function needs, at least.
    pub layers_min: usize,
    /// Layers besides the rest of the stack that the function can have.
    pub layers_max: usize,
    pub options: Vec<ItemView>,
    /// Orders that the function takes.
    pub orders: Vec<ItemView>,
    /// Metrics that the function reports.
    pub metrics: Vec<MetricView>,
}

/// An option, or an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemView {
    /// Name of the option; form of the order, with arguments in capitals.
    pub name: String,
    pub about: String,
}

/// A metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MetricView {
    pub name: String,
    /// Type of the metric: `counter` or `gauge`.
    pub kind: String,
    pub about: String,
}

/// Name and description of a function that is only a layer.
#[derive(Clone, Copy, Debug)]
pub struct KindName {
    pub name: &'static str,
    pub about: &'static str,
}

/// Layer below, in schemas that nothing but their own keys is read of.
#[derive(ToSchema)]
#[allow(dead_code)] // Only its type is used.
struct AnyLayer;

type L = AnyLayer;

/// Defines lists of the functions of the registry.
macro_rules! lists {
    ($($Kind:ident($Options:ident $(<$L:ident>)?))*) => {
        /// Returns the names of the functions that are only a layer.
        pub fn kinds() -> Vec<KindName> {
            vec![$(name_of::<crate::$Options $(<$L>)?>()),*]
        }

        fn layers() -> Vec<Description> {
            vec![$(of_layer::<crate::$Options $(<$L>)?>()),*]
        }
    };
}

crate::layers!(lists);

/// Returns the descriptions of all functions.
pub fn describe() -> Vec<Description> {
    layers().into_iter().chain(SERVICES.iter().map(of_service)).collect()
}

fn name_of<K: Kind<AnyLayer>>() -> KindName {
    KindName { name: K::NAME, about: K::ABOUT }
}

fn of_layer<K: Kind<AnyLayer> + PartialSchema>() -> Description {
    Description {
        keys: format!("kind = \"{}\"", K::NAME),
        about: K::ABOUT.to_owned(),
        layers_min: K::LAYERS.0,
        layers_max: K::LAYERS.1,
        options: options(&serde_json::to_value(K::schema()).unwrap_or_default()),
        orders: Vec::new(),
        metrics: Vec::new(),
    }
}

/// Returns the keys of a schema, with their descriptions. `layers` is described by itself.
fn options(schema: &serde_json::Value) -> Vec<ItemView> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let of = |(name, property): (&String, &serde_json::Value)| ItemView {
        name: name.clone(),
        about: description(property).replace('\n', " "),
    };
    properties.map(of).filter(|option| option.name != "layers").collect()
}

/// Returns the description of a key; a key that may be left out has it at one of its choices.
fn description(property: &serde_json::Value) -> &str {
    let choices = property["oneOf"].as_array().into_iter().flatten();
    let described = std::iter::once(property).chain(choices).find_map(|it| it["description"].as_str());
    described.unwrap_or_default()
}

fn of_service(service: &Record) -> Description {
    let items = |items: &[Item]| -> Vec<ItemView> {
        items.iter().map(|it| ItemView { name: it.name.to_owned(), about: it.about.to_owned() }).collect()
    };
    let metrics = service.metrics.iter().map(|metric| MetricView {
        name: metric.name.to_owned(),
        kind: metric.kind().to_owned(),
        about: metric.about.to_owned(),
    });
    Description {
        keys: format!("kind = \"uif\", function = \"{}\"", service.name),
        about: service.about.to_owned(),
        layers_min: service.layers.0,
        layers_max: service.layers.1,
        options: items(service.options),
        orders: items(service.orders),
        metrics: metrics.collect(),
    }
}

/// Returns the tables of all functions as docs/reference/functions.md has them.
pub fn table() -> String {
    let mut text = String::from("| function | layers | options | orders | |\n|---|---|---|---|---|\n");
    let names = |items: &[ItemView]| {
        items.iter().map(|item| format!("`{}`", item.name)).collect::<Vec<_>>().join(", ")
    };
    for it in describe() {
        let (options, orders) = (names(&it.options), names(&it.orders));
        let (keys, layers, about) = (&it.keys, it.layers(), &it.about);
        let _ = writeln!(text, "| `{keys}` | {layers} | {options} | {orders} | {about} |");
    }
    text += "\n| function | option | |\n|---|---|---|\n";
    for it in layers() {
        for option in &it.options {
            let _ = writeln!(text, "| `{}` | `{}` | {} |", it.keys, option.name, option.about);
        }
    }
    text
}

impl Description {
    /// Returns the possible numbers of layers besides the rest of the stack; an empty text for none.
    pub fn layers(&self) -> String {
        match (self.layers_min, self.layers_max) {
            (_, 0) => String::new(),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        }
    }
}
