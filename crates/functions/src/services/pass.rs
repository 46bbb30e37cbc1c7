//! Pass: a function that sees every command and forwards it. It shows the cost of a function without work.

use super::service::{NoOrder, Service, check_options};
use sluice_crypt::Given;
use sluice_uif::abi::operation;
use sluice_uif::{Answer, Call, Function, Interest, Io, Options, Properties};

/// Function with nothing to do.
#[derive(Debug)]
pub(super) struct PassFunction;

impl Service for PassFunction {
    const NAME: &'static str = "pass";
    const ABOUT: &'static str = "Sees every command and lets it through.";

    const KEEPS_STATE: bool = false;

    type Order = NoOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        check_options::<Self>(options)?;
        Ok(Box::new(Self))
    }

    fn keeps_size(_: &Options) -> bool {
        true
    }
}

impl Function for PassFunction {
    fn properties(&self) -> Properties {
        Properties { interests: [Interest::Before; operation::COUNT], ..Properties::NONE }
    }

    fn submit(&mut self, _call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        Answer::Forward
    }
}
