//! Tests without reactors: a home and its ports are turned by hand.

mod model;
mod rules;

use crate::{Home, Object, Port, PortNumber, Unit};

/// An object that checks the owner of each unit.
#[derive(Debug)]
struct Ledger {
    owners: Vec<Option<PortNumber>>,
}

impl Ledger {
    fn new(units: usize) -> Self {
        Self { owners: vec![None; units] }
    }

    fn free(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    fn of(&self, port: PortNumber) -> usize {
        self.owners.iter().filter(|owner| **owner == Some(port)).count()
    }
}

impl Object for Ledger {
    fn take(&mut self, port: PortNumber) -> Option<Unit> {
        let unit = self.owners.iter().position(Option::is_none)?;
        self.owners[unit] = Some(port);
        Some(unit as Unit)
    }

    fn give_back(&mut self, port: PortNumber, unit: Unit) {
        let owner = self.owners[unit as usize].take();
        assert_eq!(owner, Some(port), "unit {unit} comes back from a port that does not have it");
    }

    fn reclaim(&mut self, port: PortNumber, limit: usize) -> bool {
        let of_port = self.owners.iter_mut().filter(|owner| **owner == Some(port));
        of_port.take(limit).for_each(|owner| *owner = None);
        self.of(port) == 0
    }
}

fn home(units: usize) -> Home<Ledger> {
    Home::new(Ledger::new(units)).expect("an eventfd")
}

fn connect(home: &mut Home<Ledger>) -> Port {
    let (port, connection) = home.side().connect().expect("a port");
    home.attach(connection);
    port
}
