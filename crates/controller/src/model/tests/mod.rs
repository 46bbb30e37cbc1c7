//! Tables of the model's limits: namespaces of all sizes, shares of controllers, and obstacles.

mod history;
mod layers;
mod namespaces;
mod obstacles;
mod queues;
mod sharing;
mod unmapped;

use crate::model::namespace::{Namespace, NamespaceConfig, NamespaceError};
use crate::model::subsystem::Config;
use crate::model::{Controller, Subsystem};
use crate::state::identity::Identity;
use sluice_command::{Characteristics, Command, Lane, Layer, Stack};
use sluice_nvme::Status;
use sluice_router::RouterBuilder;

/// Layer that does nothing.
#[derive(Debug)]
struct Plain(Characteristics);

impl Layer for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        self.0
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn resized(&mut self, size: u64) {
        self.0.size = size;
    }
}

fn try_namespace(nsid: u32, block_size: u32, is: Characteristics) -> Result<Namespace, NamespaceError> {
    let stack = Stack::of(Box::new(Plain(is)));
    let config = NamespaceConfig { nsid, block_size, uuid: [nsid as u8; 16] };
    Namespace::new(config, RouterBuilder::new(stack).build())
}

fn namespace(nsid: u32, block_size: u32, is: Characteristics) -> Namespace {
    try_namespace(nsid, block_size, is).expect("a possible namespace")
}

/// Returns a namespace of 64 KiB.
pub(crate) fn small(nsid: u32) -> Namespace {
    namespace(nsid, 512, Characteristics::target(64 << 10, 512))
}

fn subsystem(namespaces: Vec<Namespace>) -> Subsystem {
    let text = || String::from("any");
    let identity = Identity { subnqn: text(), serial: text(), model: text(), firmware: text() };
    Subsystem::new(Config { identity, namespaces }).expect("memory")
}

/// Returns a subsystem with so many controllers.
pub(crate) fn shared(namespaces: Vec<Namespace>, controllers: u16) -> (Subsystem, Vec<Controller>) {
    let mut subsystem = subsystem(namespaces);
    subsystem.expect(controllers.into());
    let controllers = (0..controllers).map(|it| Controller::new(&mut subsystem, 1 + it).expect("memory"));
    let controllers = controllers.collect();
    (subsystem, controllers)
}
