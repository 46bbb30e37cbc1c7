//! Storage functions as a user describes them.

use super::{Fault, LayerSpec, UifSpec};
use serde::{Deserialize, Serialize};
use sluice_functions::{Kind, OpenCx, Prepared, QosLimits, Shape};
use utoipa::ToSchema;

/// Defines [`FunctionSpec`] with all functions of the registry.
macro_rules! function_spec {
    ($($Kind:ident($Options:ident $(<$L:ident>)?))*) => {
        /// A storage function.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        pub enum FunctionSpec {
            $($Kind(sluice_functions::$Options $(<$L>)?),)*
            /// Function behind the function SDK, in the daemon or in a process of its own.
            Uif(UifSpec),
        }

        impl FunctionSpec {
            /// Returns its name for people: the kind, or the name, program or socket of a function behind the
            /// function SDK.
            pub fn name(&self) -> String {
                match self {
                    $(Self::$Kind(_) => name_of::<sluice_functions::$Options $(<$L>)?>(),)*
                    Self::Uif(uif) => uif.about(),
                }
            }

            /// Checks the options, without the layers.
            fn check_options(&self) -> Result<(), Fault> {
                match self {
                    $(Self::$Kind(options) => Kind::<LayerSpec>::check(options),)*
                    Self::Uif(uif) => uif.check(),
                }
            }

            /// Returns the relation to the layers below.
            pub fn shape(&self) -> Shape {
                match self {
                    $(Self::$Kind(options) => Kind::<LayerSpec>::shape(options),)*
                    Self::Uif(uif) => uif.shape(),
                }
            }

            /// Returns the layers below it besides the rest of the stack.
            pub fn layers(&self) -> &[LayerSpec] {
                match self {
                    $(Self::$Kind(options) => options.layers(),)*
                    Self::Uif(uif) => &uif.layers,
                }
            }

            /// Returns the layers below it besides the rest of the stack, to change them.
            pub fn layers_mut(&mut self) -> &mut [LayerSpec] {
                match self {
                    $(Self::$Kind(options) => options.layers_mut(),)*
                    Self::Uif(uif) => &mut uif.layers,
                }
            }

            /// Returns the limits that can be changed while the function runs, if it has some.
            pub fn limits(&self) -> Option<QosLimits> {
                match self {
                    $(Self::$Kind(options) => Kind::<LayerSpec>::limits(options),)*
                    Self::Uif(_) => None,
                }
            }

            /// Returns the limits of the function, to change them.
            pub fn limits_mut(&mut self) -> Option<&mut QosLimits> {
                match self {
                    $(Self::$Kind(options) => Kind::<LayerSpec>::limits_mut(options),)*
                    Self::Uif(_) => None,
                }
            }

            /// Opens a function that is only a layer; `None` for a function behind the function SDK. May
            /// block.
            ///
            /// # Errors
            /// Returns the key that cannot be fulfilled.
            pub fn open(&self, cx: &OpenCx<'_>) -> Result<Option<Prepared>, Fault> {
                match self {
                    $(Self::$Kind(options) => Kind::<LayerSpec>::open(options, cx).map(Some),)*
                    Self::Uif(_) => Ok(None),
                }
            }

            /// Returns the number of layers besides the rest of the stack, at least and at most.
            fn layers_bounds(&self) -> (usize, usize) {
                match self {
                    $(Self::$Kind(_) => bounds_of::<sluice_functions::$Options $(<$L>)?>(),)*
                    Self::Uif(_) => (0, sluice_uif::abi::LAYERS_MAX - 1),
                }
            }
        }
    };
}

/// Name of the description of a layer in the registry.
type L = LayerSpec;

sluice_functions::layers!(function_spec);

fn name_of<K: Kind<LayerSpec>>() -> String {
    K::NAME.to_owned()
}

fn bounds_of<K: Kind<LayerSpec>>() -> (usize, usize) {
    K::LAYERS
}

impl FunctionSpec {
    pub fn check(&self) -> Result<(), Fault> {
        self.check_options()?;
        self.check_layers()
    }

    fn check_layers(&self) -> Result<(), Fault> {
        let (layers, (least, most)) = (self.layers(), self.layers_bounds());
        if layers.len() < least {
            return Err(Fault::at_key("layers", "one layer alone is nothing to put together")
                .hint("add one, such as layers = [ { target = \"file\", path = \"/b.img\" } ]"));
        }
        if layers.len() > most {
            return Err(Fault::at_key("layers", format!("at most {most} besides the stack are possible")));
        }
        let is_composed = self.is_composed();
        for (index, layer) in layers.iter().enumerate() {
            // Functions behind the SDK are numbered along the stack, and a layer aside has no place in that
            // order.
            if is_composed && layer.functions.iter().any(|function| matches!(function, Self::Uif(_))) {
                return Err(Fault::at_key("functions", "no `uif` can stand on one layer of several")
                    .hint("put it over all of them")
                    .inside("layers", index));
            }
            layer.as_namespace().check().map_err(|fault| fault.inside("layers", index))?;
        }
        Ok(())
    }

    /// Returns whether it is as large as the layer below.
    pub(super) fn keeps_size(&self) -> bool {
        self.shape().keeps_size
    }

    /// Returns whether a namespace with it has the size of several targets, not of one.
    pub fn is_composed(&self) -> bool {
        self.shape().is_composed
    }

    /// Returns the layers that have a copy of all data below the function.
    pub fn copies(&self) -> &[LayerSpec] {
        let copies = self.shape().copies;
        self.layers().get(..copies).unwrap_or_default()
    }

    /// Describes the part of the layer below that holds the data, and the further layers that do. A `uif`
    /// does not count, because it is attached and detached while the drive is in use.
    pub(super) fn data_location(&self) -> Option<String> {
        let Shape { data, is_composed, .. } = self.shape();
        if !is_composed {
            return data;
        }
        let layers = self.layers().iter().map(|layer| format!("[{}]", layer.as_namespace().data_location()));
        Some(format!("{} with {}", data?, layers.collect::<Vec<_>>().join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the tag of a variant is the name of its kind.
    #[test]
    fn kinds_have_the_names_that_are_written() {
        let has_layers = |name: &str| matches!(name, "stripe" | "concat");
        let mut names = Vec::new();
        for kind in sluice_functions::kinds() {
            let layers =
                if has_layers(kind.name) { r#","layers":[{"target":"null","size":4096}]"# } else { "" };
            let outcome = if kind.name == "fault" { r#","outcome":"fail""# } else { "" };
            let counts = if kind.name == "map" { r#","counts":[1]"# } else { "" };
            let text = format!(r#"{{"kind":"{}"{layers}{outcome}{counts}}}"#, kind.name);
            let spec: FunctionSpec =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(spec.name(), kind.name);
            assert_eq!(spec.check(), Ok(()), "{text}");
            assert!(
                serde_json::to_string(&spec)
                    .expect("it is written")
                    .contains(&format!(r#""kind":"{}""#, kind.name))
            );
            names.push(kind.name);
        }
        assert!(names.contains(&"pass") && names.len() >= 6, "{names:?}");
    }
}
