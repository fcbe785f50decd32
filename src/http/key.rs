//! Affinity keys of HTTP requests.
//!
//! Each works on [`http::Request`](https://docs.rs/http/1/http/request/struct.Request.html) and,
//! with the feature `reqwest`, on `reqwest::Request`.
//! [`Combine`](crate::policy::affinity::Combine) makes one key of two.
//!
//! ```
//! use counterpoise::{http::key, policy::affinity::{Combine, RingHash}};
//!
//! let policy = RingHash::on(key::header("x-user").or(key::cookie("session")));
//! ```

use http::{
    HeaderMap, HeaderName, Request,
    header::{COOKIE, HOST},
};

use crate::policy::affinity::{Affinity, Key, Keyed, Structure};

/// The key is the value of a header; of several values, the first.
///
/// The case of the name does not matter. No request has a header whose name is not valid.
#[must_use]
pub fn header(name: &str) -> Header {
    Header(name.parse().ok())
}

/// The key is the path, without the query.
#[must_use]
pub const fn path() -> Path {
    Path
}

/// The key is the value of a query parameter, not decoded; of several values, the first.
#[must_use]
pub fn query(name: &str) -> Query {
    Query(name.to_owned())
}

/// The key is the value of a cookie; of several values, the first.
#[must_use]
pub fn cookie(name: &str) -> Cookie {
    Cookie(name.to_owned())
}

/// The key is the host of the request: of its URL, or else of its `Host` header.
#[must_use]
pub const fn host() -> Host {
    Host
}

/// The affinity that [`header()`] returns.
#[derive(Debug, Clone)]
pub struct Header(Option<HeaderName>);

/// The affinity that [`path()`] returns.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Path;

/// The affinity that [`query()`] returns.
#[derive(Debug, Clone)]
pub struct Query(String);

/// The affinity that [`cookie()`] returns.
#[derive(Debug, Clone)]
pub struct Cookie(String);

/// The affinity that [`host()`] returns.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Host;

impl<S: Structure + Default> Keyed<Header, S> {
    /// Creates the policy from the name of the header that holds the key.
    #[must_use]
    pub fn by_header(name: &str) -> Self {
        Self::on(header(name))
    }
}

/// An HTTP request from which a key can be read. Sealed: implemented for `http::Request` and
/// `reqwest::Request`.
pub trait HttpRequest: sealed::HttpRequest {}

impl<R: sealed::HttpRequest> HttpRequest for R {}

pub(super) mod sealed {
    use super::HeaderMap;

    #[allow(unnameable_types, reason = "the seal")]
    pub trait HttpRequest {
        fn headers(&self) -> &HeaderMap;
        fn path(&self) -> &str;
        fn query(&self) -> Option<&str>;
        fn host(&self) -> Option<&str>;
    }
}

impl<B> sealed::HttpRequest for Request<B> {
    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn path(&self) -> &str {
        self.uri().path()
    }

    fn query(&self) -> Option<&str> {
        self.uri().query()
    }

    fn host(&self) -> Option<&str> {
        self.uri().host()
    }
}

impl<R: HttpRequest> Affinity<R> for Header {
    fn key<'a>(&self, request: &'a R) -> Option<Key<'a>> {
        request
            .headers()
            .get(self.0.as_ref()?)
            .map(|value| value.as_bytes().into())
    }
}

impl<R: HttpRequest> Affinity<R> for Path {
    fn key<'a>(&self, request: &'a R) -> Option<Key<'a>> {
        Some(request.path().into())
    }
}

impl<R: HttpRequest> Affinity<R> for Query {
    fn key<'a>(&self, request: &'a R) -> Option<Key<'a>> {
        let mut pairs = request.query()?.split('&').map(|pair| split(pair, '='));
        pairs
            .find(|(name, _)| *name == self.0)
            .map(|(_, value)| value.into())
    }
}

impl<R: HttpRequest> Affinity<R> for Cookie {
    fn key<'a>(&self, request: &'a R) -> Option<Key<'a>> {
        let headers = request.headers().get_all(COOKIE).iter();
        let texts = headers.filter_map(|header| header.to_str().ok());
        let mut pairs = texts
            .flat_map(|text| text.split(';'))
            .map(|pair| split(pair.trim(), '='));
        pairs
            .find(|(name, _)| *name == self.0)
            .map(|(_, value)| value.into())
    }
}

impl<R: HttpRequest> Affinity<R> for Host {
    fn key<'a>(&self, request: &'a R) -> Option<Key<'a>> {
        let of_header = || request.headers().get(HOST)?.to_str().ok();
        request.host().or_else(of_header).map(Key::from)
    }
}

/// Splits name and value; without a separator the value is empty.
fn split(pair: &str, at: char) -> (&str, &str) {
    pair.split_once(at).unwrap_or((pair, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::affinity::Combine;

    fn request() -> Request<()> {
        Request::builder()
            .uri("http://shop:80/a/b?x=1&user=7%20&user=8&flag")
            .header("X-User", "first")
            .header("X-User", "second")
            .header(COOKIE, "a=b; session=s=1")
            .header(COOKIE, "late=l")
            .body(())
            .unwrap()
    }

    fn key(affinity: impl Affinity<Request<()>>) -> Option<String> {
        let request = request();
        let key = affinity.key(&request)?;
        Some(String::from_utf8(key.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn every_part_is_found() {
        assert_eq!(key(header("x-user")).as_deref(), Some("first"));
        assert_eq!(key(header("no")), None);
        assert_eq!(key(header("no header name")), None);
        assert_eq!(key(path()).as_deref(), Some("/a/b"));
        assert_eq!(key(query("user")).as_deref(), Some("7%20"));
        assert_eq!(key(query("flag")).as_deref(), Some(""));
        assert_eq!(key(query("use")), None);
        assert_eq!(key(cookie("session")).as_deref(), Some("s=1"));
        assert_eq!(key(cookie("late")).as_deref(), Some("l"));
        assert_eq!(key(cookie("no")), None);
        assert_eq!(key(host()).as_deref(), Some("shop"));
        assert_eq!(key(header("no").or(cookie("a"))).as_deref(), Some("b"));
    }
}
