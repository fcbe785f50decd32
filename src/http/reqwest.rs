//! Origins for `reqwest::Client`.

use std::task::{Context, Poll};

use http::{HeaderMap, HeaderValue, header::HOST};
use reqwest::{Request, Url};
use tower_service::Service;

use super::{AtOrigin, Origin, at_origin::sealed, key::sealed::HttpRequest};

impl<C: sealed::Client<Request>> Service<Request> for AtOrigin<C> {
    type Response = C::Response;
    type Error = C::Error;
    type Future = C::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.client.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> C::Future {
        redirect(&self.origin, &mut request);
        self.client.call(request)
    }
}

impl HttpRequest for Request {
    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn path(&self) -> &str {
        self.url().path()
    }

    fn query(&self) -> Option<&str> {
        self.url().query()
    }

    fn host(&self) -> Option<&str> {
        self.url().host_str()
    }
}

/// Changes the URL of a request to an origin.
fn redirect(origin: &Origin, request: &mut Request) {
    let mut url = origin.url().clone();
    url.set_path(&format!("{}{}", origin.base(), request.url().path()));
    url.set_query(request.url().query());
    url.set_fragment(request.url().fragment());
    let former = std::mem::replace(request.url_mut(), url);
    if origin.preserves_host()
        && let Some(host) = authority(&former)
    {
        request.headers_mut().entry(HOST).or_insert(host);
    }
}

/// Returns host and port of a URL in the form of a `Host` header.
fn authority(url: &Url) -> Option<HeaderValue> {
    let host = url.host_str()?;
    let text = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::Method;

    fn redirected(origin: &str, url: &str) -> Request {
        let mut request = Request::new(Method::GET, url.parse().unwrap());
        redirect(&origin.parse().unwrap(), &mut request);
        request
    }

    #[test]
    fn path_and_query_are_kept_behind_the_base_path() {
        for (origin, url, want) in [
            ("http://h:1", "http://x/a/b?c=d", "http://h:1/a/b?c=d"),
            ("https://h", "http://x", "https://h/"),
            (
                "http://[::1]:81/base",
                "http://x/a%20b?q",
                "http://[::1]:81/base/a%20b?q",
            ),
            ("http://h/base/", "http://x/", "http://h/base/"),
            ("http://h/base", "https://x:7?q#f", "http://h/base/?q#f"),
        ] {
            assert_eq!(redirected(origin, url).url().as_str(), want);
        }
    }

    #[test]
    fn hosts_are_kept_if_the_origin_preserves_them() {
        let origin: Origin = "http://h:1".parse().unwrap();
        let mut request = Request::new(Method::GET, "http://service:9/".parse().unwrap());
        redirect(&origin, &mut request);
        assert!(request.headers().get(HOST).is_none());
        let mut request = Request::new(Method::GET, "http://service:9/".parse().unwrap());
        redirect(&origin.preserve_host(true), &mut request);
        assert_eq!(request.headers()[HOST], "service:9");
    }
}
