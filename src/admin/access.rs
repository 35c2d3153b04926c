//! Who may use the operator's listener: everybody who reaches it, or whoever has the token.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderValue, Response};

use super::answer;
use crate::fields::bearer;
use crate::secret::Secret;

/// The answer to a request without the token, where there is one.
pub fn refuse(fields: &HeaderMap, token: Option<&Secret>) -> Option<Response<Vec<u8>>> {
    let wanted = token?;
    if bearer::token(fields).is_some_and(|given| wanted.is(given)) {
        return None;
    }
    let mut refusal = answer(401, "text/plain", "this listener wants its token: Authorization: Bearer\n".into());
    refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"admin\""));
    Some(refusal)
}
