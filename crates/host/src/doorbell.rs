//! Doorbells: mapped, sent as messages, or shadowed (Base 3.1.4 and 5.2.5, Doorbell Buffer Config).

use crate::{DmaBuffer, Error, PciTransport};
use sluice_memory::SharedRegion;
use sluice_memory::doorbell::passes;
use sluice_nvme::PAGE_SIZE;
use sluice_nvme::register::DOORBELLS;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The two pages of Doorbell Buffer Config. Both have the layout of the doorbell registers.
#[derive(Debug)]
pub(crate) struct ShadowPages {
    /// Doorbell values of the host.
    pub(crate) values: DmaBuffer,
    /// Event indexes: values from which on the controller needs a doorbell write.
    pub(crate) events: DmaBuffer,
}

/// Makes the doorbells of one controller.
#[derive(Clone, Debug)]
pub(crate) struct Doorbells {
    pub(crate) transport: Arc<dyn PciTransport>,
    /// Bytes from one doorbell to the next (CAP.DSTRD).
    pub(crate) stride: usize,
    pub(crate) shadow: Option<Arc<ShadowPages>>,
}

impl Doorbells {
    /// Returns the tail doorbell of a submission queue.
    pub(crate) fn tail(&self, queue: u16) -> Doorbell {
        self.doorbell(queue, usize::from(queue) * 2)
    }

    /// Returns the head doorbell of a completion queue.
    pub(crate) fn head(&self, queue: u16) -> Doorbell {
        self.doorbell(queue, usize::from(queue) * 2 + 1)
    }

    fn doorbell(&self, queue: u16, index: usize) -> Doorbell {
        let offset = index * self.stride;
        let fits = offset + size_of::<u32>() <= PAGE_SIZE;
        let access = match self.transport.doorbell_page() {
            Some(page) if fits => DoorbellAccess::Mapped(page.clone()),
            _ => DoorbellAccess::Trapped {
                transport: self.transport.clone(),
                shadow: self.shadow(queue, fits),
            },
        };
        Doorbell { access, offset, last: 0 }
    }

    /// Returns the shadow doorbells of a queue. The admin queue has none: it exists before Doorbell Buffer
    /// Config can be sent.
    fn shadow(&self, queue: u16, fits: bool) -> Option<Arc<ShadowPages>> {
        self.shadow.clone().filter(|_| queue != 0 && fits)
    }
}

/// A doorbell, which is written only when its value changes.
#[derive(Debug)]
pub(crate) struct Doorbell {
    access: DoorbellAccess,
    /// Bytes from the first doorbell.
    offset: usize,
    last: u32,
}

#[derive(Debug)]
enum DoorbellAccess {
    Mapped(Arc<SharedRegion>),
    Trapped { transport: Arc<dyn PciTransport>, shadow: Option<Arc<ShadowPages>> },
}

impl Doorbell {
    /// Makes all earlier writes to the queue visible, then notifies the device.
    #[inline]
    pub(crate) fn ring(&mut self, value: u32) -> Result<(), Error> {
        if value == self.last {
            return Ok(());
        }
        let last = std::mem::replace(&mut self.last, value);
        match &self.access {
            DoorbellAccess::Mapped(page) => page.atomic_u32(self.offset).store(value, Ordering::Release),
            DoorbellAccess::Trapped { transport, shadow } => {
                if shadow.as_ref().is_none_or(|shadow| self.update_shadow(shadow, last)) {
                    return transport.post(u64::from(DOORBELLS) + self.offset as u64, value);
                }
            }
        }
        Ok(())
    }

    /// Writes any value, valid or not, past the shadow doorbell.
    pub(crate) fn force(&mut self, value: u32) -> Result<(), Error> {
        match &self.access {
            DoorbellAccess::Mapped(page) => page.atomic_u32(self.offset).store(value, Ordering::Release),
            DoorbellAccess::Trapped { transport, shadow } => {
                if let Some(shadow) = shadow {
                    shadow.values.region().atomic_u32(self.offset).store(value, Ordering::Release);
                }
                transport.post(u64::from(DOORBELLS) + self.offset as u64, value)?;
            }
        }
        Ok(())
    }

    /// Clears the values that a queue of the same number left.
    pub(crate) fn clear_shadow(&self) {
        if let DoorbellAccess::Trapped { shadow: Some(shadow), .. } = &self.access {
            shadow.values.region().atomic_u32(self.offset).store(0, Ordering::Release);
            shadow.events.region().atomic_u32(self.offset).store(0, Ordering::Release);
        }
    }

    /// Writes the shadow doorbell. Returns whether the value passed the controller's event index.
    ///
    /// The controller moves the event index, then reads the value once more before it sleeps. The host moves
    /// the value, then reads the event index. A full fence is between the two steps on either side. So at
    /// least one of them sees the other's change.
    fn update_shadow(&self, shadow: &ShadowPages, last: u32) -> bool {
        shadow.values.region().atomic_u32(self.offset).store(self.last, Ordering::Release);
        fence(Ordering::SeqCst);
        let event = shadow.events.region().atomic_u32(self.offset).load(Ordering::Relaxed);
        passes(event as u16, self.last as u16, last as u16)
    }
}
