package credential

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// Names of credentials, as programs and servers write them, and honest ones beside them.
var (
	credentialHeaders = strings.Fields(`apikey Api-Key X-API-KEY X-ApiKey XApiKey X-Token X-API-TOKEN X-Auth-Key X-Auth-Token X-Auth DD-API-KEY DD-APPLICATION-KEY
		xi-api-key X-Authorization X-Forwarded-Authorization Proxy-Authorization authorization x_api_key X.Api.Key Access-Token accesstoken X-Client-Secret
		X-Secret X-Vault-Token Private-Token X-RapidAPI-Key X-Functions-Key Ocp-Apim-Subscription-Key X-Shopify-Access-Token X-Session-Token Authentication
		X-JWT X-Bearer Cookie Cookie2 X-Password X-Key X-MBX-APIKEY X-Api-Key-1 X-Signature CF-Access-Client-Secret X-Consumer-Key X-Plex-Token X-Figma-Token
		Linear-Api-Key Stripe-Secret-Key x-goog-api-key X-Amz-Security-Token X-OAuth-Token X-OAuth2-Token`)
	credentialParams = strings.Fields(`auth_token oauth_token client_secret access_token accessToken AccessToken api_key apiKey apikey APIKEY key token auth sig signature
		private_token client_assertion refresh_token id_token password passwd user_password app_secret consumer_key oauth_consumer_key oauth_signature jwt secret
		access.token access-token access_token[] auth[token] x_auth_token[0] page_access_token subscription-key write_key service_key appkey xoauthtoken api_key_v2 access_token_value`)
	honestHeaders = strings.Fields(`X-CSRF-Token X-CSRFToken X-XSRF-TOKEN Csrf-Token X-Csrftoken RequestVerificationToken Idempotency-Key X-Idempotency-Key Sec-WebSocket-Key Sec-WebSocket-Accept
		X-Page-Token X-Max-Tokens X-Token-Count Surrogate-Key X-Cache-Key Lock-Token If-Match Author X-Author Authority Accept Content-Type User-Agent Anthropic-Version
		Anthropic-Beta X-App X-Stainless-Lang X-Stainless-Retry-Count OpenAI-Organization OpenAI-Beta Session_id Conversation_id Mcp-Session-Id X-Goog-Api-Client X-Goog-User-Project
		Keep-Alive X-Request-Id X-Hub-Design Signal Passenger Keyboard-Layout Monkey X-Hockey X-Amz-Server-Side-Encryption-Customer-Key X-Ms-Encryption-Key Etag X-Token-Type Token-Binding-Id`)
	honestParams = strings.Fields(`page_token pageToken nextPageToken next_token NextToken next_page_token max_tokens maxOutputTokens max_output_tokens csrf_token authenticity_token sort_key
		primary_key partition_key foreign_key cache_key prompt_cache_key public_key ssh_key project_key object_key idempotency_key token_count tokens token_type token_ids stop_token continuation_token
		continuation-token sync_token syncToken nextSyncToken cursor starting_token resumptionToken progressToken eos_token_id key_id keyId keys keyword author authors authority
		has_password reset_password require_auth sort_by signal design assign passenger monkey turkey hotkey tokenizer secretary pagination[token] page[token] filter[author] password_hint auth_type secret_name`)
)

// TestNames: a name of a credential is known by its words, and honest names that share
// them are not taken for one.
func TestNames(t *testing.T) {
	c := open(t, Bearer, "", real)
	for _, h := range credentialHeaders {
		if !c.ownHeader(http.CanonicalHeaderKey(h), nil) {
			t.Errorf("the header %s stays", h)
		}
	}
	for _, p := range credentialParams {
		if !c.ownParam(p, nil) {
			t.Errorf("the parameter %s stays", p)
		}
	}
	for _, h := range honestHeaders {
		if c.ownHeader(http.CanonicalHeaderKey(h), nil) {
			t.Errorf("the header %s is removed", h)
		}
	}
	for _, p := range append(honestParams, "") {
		if c.ownParam(p, nil) || namesCredential(p, inField) {
			t.Errorf("the parameter or field %s is removed", p)
		}
	}
}

// TestOwnByName: what is named like a credential is removed from a request, and the rest
// stays as it was written. A route can allow names, but not that of its own credential.
func TestOwnByName(t *testing.T) {
	r := request(t, "https://h/p?"+strings.Join(credentialParams, "=agents-own&")+"=agents-own&"+strings.Join(honestParams, "=kept&")+"=kept")
	for _, h := range credentialHeaders {
		r.Header.Add(h, "agents-own")
	}
	for _, h := range honestHeaders {
		r.Header.Add(h, "kept")
	}
	kept := len(r.Header)
	if err := open(t, Bearer, "", real).Sign(r, nil, nil); err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(r.Header, r.URL.RawQuery); strings.Contains(s, "agents-own") || r.URL.RawQuery != strings.Join(honestParams, "=kept&")+"=kept" || len(r.Header) >= kept {
		t.Errorf("left are %s", s)
	}
	for _, h := range honestHeaders {
		if r.Header.Get(h) != "kept" {
			t.Errorf("the header %s is gone", h)
		}
	}
	own := Own{"X-Auth-Key", "client_secret", "authorization", "own"}
	for _, scheme := range []string{"bearer", "query"} {
		c := open(t, Bearer, "", real)
		if scheme == "query" {
			c = open(t, Query, "own", real)
		}
		r = request(t, "https://h/p?client_secret=1&own=2&api_key=3", "X_Auth_Key", "4", "Authorization", "5", "X-Api-Key", "6")
		if err := c.Sign(r, own, nil); err != nil {
			t.Fatal(err)
		}
		want, auth := "client_secret=1&own=2", "Bearer "+real
		if scheme == "query" {
			want, auth = "client_secret=1&own="+real, "5"
		}
		if r.URL.RawQuery != want || r.Header.Get("X_auth_key") != "4" || r.Header.Get("Authorization") != auth || r.Header.Get("X-Api-Key") != "" {
			t.Errorf("%s: %s %v", scheme, r.URL.RawQuery, r.Header)
		}
	}
}

func look(c *Credential, contentType, body string, own Own, step int) error {
	f := c.Fields(contentType, own)
	if f == nil {
		return nil
	}
	for i := 0; i < len(body); i += step {
		if err := f.Look([]byte(body[i:min(len(body), i+step)])); err != nil {
			return err
		}
	}
	return nil
}

// TestFields: a body with a credential of the agent's own is refused, however it is cut
// and written, and names it. Bodies beside it pass, also with the placeholder.
func TestFields(t *testing.T) {
	c := open(t, Bearer, "", strings.Repeat("0", 60))
	const j, form = "application/json; charset=utf-8", "application/x-www-form-urlencoded"
	place := c.Placeholder()
	for _, x := range []struct{ kind, body, name string }{
		{j, `{"api_key":"agents-own"}`, "api_key"},
		{j, " \n{ \"a\\\"\\\\\": {\"b\":[1,\"}\"]}, \"client_secret\"\t: \"agents-own\" }", "client_secret"},
		{j, `{"\u0061ccess\u005ftoken":"x"}`, "access_token"},
		{j, `{"a":"` + strings.Repeat(`x\"`, 50) + `\\","token":"x"}`, "token"},
		{j, `{"jsonrpc":"2.0","params":{"auth":"x"}}`, "auth"},
		{j, `{"auth":{"identity":1,"token":"x"}}`, "token"},
		{j, `{"credentials":[{"password":"x"}]}`, "password"},
		{j, `[{"a":1},{"apiKey":"x"}]`, "apiKey"},
		{j, `{"token":"` + place + `more"}`, "token"},
		{j, `{"a":"","authToken":"` + place[:20] + `!"}`, "authToken"},
		{j, "{\x00\"\x00t\x00", ""},
		{j, "\xff\xfe{\x00", ""},
		{"application/graphql+json", `{"secret":"x"}`, "secret"},
		{"text/plain", `{"api_key":"x"}`, "api_key"},
		{"", `{"api_key":"x"}`, "api_key"},
		{form, `{"api_key":"x"}`, "api_key"},
		{form, "grant_type=password&client_secret=agents-own", "client_secret"},
		{form, "api%5Fkey=x", "api_key"},
		{form, "a&b=&auth%5Btoken%5D=x", "auth[token]"},
		{form, "token=" + place + "&access_token[]=x", "access_token[]"},
	} {
		for _, step := range []int{1, 3, 1000} {
			var own *OwnError
			if err := look(c, x.kind, x.body, nil, step); !errors.As(err, &own) || own.Name != x.name || x.name != "" && !strings.Contains(err.Error(), "own_credentials: ["+x.name+"]") {
				t.Errorf("%s by %d: %v", x.body, step, err)
			}
			if x.name != "" && look(c, x.kind, x.body, Own{strings.ToUpper(strings.ReplaceAll(x.name, "_", "-"))}, step) != nil {
				t.Errorf("%s by %d is refused though its name is allowed", x.body, step)
			}
		}
	}
	var honest, pairs []string
	for _, p := range append(honestParams, "key", "session", "signature", "content") {
		honest, pairs = append(honest, `"`+p+`":"a\"b"`), append(pairs, url.QueryEscape(p)+"=x%20y")
	}
	for _, x := range [][2]string{
		{j, "{" + strings.Join(honest, ",") + "}"},
		{form, strings.Join(pairs, "&")},
		{j, `{"token":"` + place + `","api_key":"","secret":null,"password":true,"auth_token":12}`},
		{form, "token=" + place + "&api_key=&secret"},
		{j, `{"data":{"password":"x"},"config":{"secret":"y"},"stringData":{"token":"z"}}`},
		{j, `{"tools":[{"input_schema":{"properties":{"api_key":{"type":"string"}},"required":["api_key","token"]}}],"required":["token"]}`},
		{j, `{"messages":[{"role":"user","content":[{"type":"tool_use","input":{"token":"x","password":"y"}}]}]}`},
		{j, `{"a":1}{"token":"behind the end"}`},
		{j, `"token"`}, {j, `[["token","x"]]`}, {j, `{"x":"\\","y":"\"token\":\"x\""}`}, {j, `not JSON: {"a"`},
		{"application/x-ndjson", `{"token":"x"}`}, {"application/octet-stream", `{"token":"x"}`}, {"multipart/mixed; boundary=x", `{"token":"x"}`}, {"text/plain", `token=x {"token":"x"}`},
	} {
		for _, step := range []int{1, 3, 1000} {
			if err := look(c, x[0], x[1], nil, step); err != nil {
				t.Errorf("%s by %d: %v", x[1], step, err)
			}
		}
	}
	if open(t, AWS, "", "AKID:"+real).Fields(j, nil) != nil {
		t.Error("bodies whose digest the client signs are looked at")
	}
}
