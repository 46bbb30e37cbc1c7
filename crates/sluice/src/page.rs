//! Socket of the web page at a TCP address.

use crate::sockets::if_at;
use sluice_api::PageAccess;
use sluice_control::config::Page;
use sluice_control::token::Token;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::paths::Places;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Socket at which the page is served, with its address and token.
#[derive(Debug)]
pub(crate) struct PageSocket {
    pub(crate) listener: TcpListener,
    pub(crate) access: Arc<PageAccess>,
}

impl PageSocket {
    /// Listens at the address of the page, and reads or makes the token; `None` without an address. `other` is the
    /// socket of another process, which is used if it listens there.
    pub(crate) fn open(
        page: &Page,
        places: &Places,
        other: Option<OwnedFd>,
    ) -> Result<Option<Self>, ApiError> {
        let Some(wanted) = page.listen else { return Ok(None) };
        let token = Token::load_or_make(&page.token_path(&places.state))?;
        let listener = if_at(wanted, other).map_or_else(|| bind(wanted), Ok)?;
        let address = listener.local_addr().map_err(|error| refused(wanted, &error))?;
        tracing::info!("page at http://{address}/; `sluice page` prints the address with its token");
        Ok(Some(Self { listener, access: Arc::new(PageAccess { address, token }) }))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.try_clone()?, access: Arc::clone(&self.access) })
    }
}

/// Binds the address of the page.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, ApiError> {
    TcpListener::bind(address).map_err(|error| refused(address, &error))
}

fn refused(address: SocketAddr, error: &io::Error) -> ApiError {
    ApiError::new(Kind::InUse, format!("cannot listen on {address} for the page: {error}"))
        .hint("page.listen in the configuration file names the address")
}
