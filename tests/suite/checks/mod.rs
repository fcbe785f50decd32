//! Active checks beside the calls.

mod attacks;
mod rounds;
mod sockets;
