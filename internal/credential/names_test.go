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
		Linear-Api-Key Stripe-Secret-Key x-goog-api-key X-Amz-Security-Token X-OAuth-Token X-OAuth2-Token Authorization-Bin
		X-Api-Key-Bin access_token-bin`)
	credentialParams = strings.Fields(`auth_token oauth_token client_secret access_token accessToken AccessToken api_key apiKey apikey APIKEY key token auth sig signature
		private_token client_assertion refresh_token id_token password passwd user_password app_secret consumer_key oauth_consumer_key oauth_signature jwt secret
		access.token access-token access_token[] auth[token] x_auth_token[0] page_access_token subscription-key write_key service_key appkey xoauthtoken api_key_v2 access_token_value`)
	honestHeaders = strings.Fields(`X-CSRF-Token X-CSRFToken X-XSRF-TOKEN Csrf-Token X-Csrftoken RequestVerificationToken Idempotency-Key X-Idempotency-Key Sec-WebSocket-Key Sec-WebSocket-Accept
		X-Page-Token X-Max-Tokens X-Token-Count Surrogate-Key X-Cache-Key Lock-Token If-Match Author X-Author Authority Accept Content-Type User-Agent Anthropic-Version
		Anthropic-Beta X-App X-Stainless-Lang X-Stainless-Retry-Count OpenAI-Organization OpenAI-Beta Session_id Conversation_id Mcp-Session-Id X-Goog-Api-Client X-Goog-User-Project
		Keep-Alive X-Request-Id X-Hub-Design Signal Passenger Keyboard-Layout Monkey X-Hockey X-Amz-Server-Side-Encryption-Customer-Key X-Ms-Encryption-Key Etag X-Token-Type Token-Binding-Id Grpc-Trace-Bin Page-Token-Bin`)
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
		if c.ownParam(p, nil) || namesCredential("", p, inField) {
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
	f := c.Fields([]string{contentType}, own, nil)
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
	const multi = "multipart/form-data; boundary=next"
	part := func(name, value string) string {
		return "\r\n--next\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value
	}
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
		{form, "x=1&a%5Bb%5D%5Bapi_key%5D=agents-own", "a[b][api_key]"},
		{j, `{"a":{"b":[{"c":{"api_key":"agents-own"}}]}}`, "api_key"},
		{j, `{"a":{"api_key":"` + place + `"},"b":{"accessToken":"Bearer agents-own"}}`, "accessToken"},
		{j, strings.Repeat(`{"a":[`, 30) + `{"token":"agents-own"`, "token"},
		{j, `{"a":{"token":{"value":"agents-own"}}}`, "value"},
		{j, `{"a":{"token":["agents-own"]}}`, "token"},
		{j, `{"a":{"password":"` + strings.Repeat("x", 2*maxWord) + `"}}`, "password"},
		{j, `{"query":"mutation { }","variables":{"input":{"clientSecret":"agents-own"}}}`, "clientSecret"},
		{j, `{"api":{"key":"agents-own"}}`, "key"},
		{j, `{"metadata":{"tools":[{"token":"agents-own"}]}}`, "token"},
		{j, `{"input":{"token":"agents-own"}}`, "token"},
		{"application/octet-stream", `{"api_key":"agents-own"}`, "api_key"},
		{"application/x-ndjson", `{"auth":{"token":"agents-own"}}`, "token"},
		{multi, part("api_key", "agents-own"), "api_key"},
		{multi, "a preamble" + part("text", "x\r\n--n") + part("user[password]", "&") + "\r\n--next--\r\n", "user[password]"},
		{multi, part(`x"; filename="y`, `{"token":"agents-own"}`) + part("operations", `{"variables":{"token":"agents-own"}}`), "token"},
		{multi, part("token", place) + part("token", place+"!"), "token"},
		{multi, "\n--next\nContent-Type: application/json\n\n" + `{"a":{"secret":"agents-own"}}`, "secret"},
		{multi, "\n--next\nContent-Type: multipart/mixed; boundary=in\n\n--in\ncontent-disposition: form-data;\n name*=utf-8''client%5fsecret\n\nx", "client_secret"},
		{multi, "\n--next\nContent-Disposition: form-data; name=a; name=api_key\n\nagents-own", ""},
		{multi, "\n--next\nContent-Disposition: form-data; name=a\nContent-Disposition: form-data; name=api_key\n\nagents-own", ""},
		{multi, "\n--next\nContent-Disposition : form-data; name=api_key\n\nagents-own", ""},
		{multi, "\n--next\nX: " + strings.Repeat("x", maxPartHead) + "\nContent-Disposition: form-data; name=api_key\n\nagents-own", ""},
		{"multipart/form-data; boundary=a; boundary=b", "x", ""},
		{"multipart/form-data", "x", ""},
	} {
		for _, step := range []int{1, 3, 20000} {
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
		{"application/x-ndjson", `{"token":"x"}`}, {"application/octet-stream", `{"token":"x"}`}, {"multipart/mixed; boundary=x", `{"token":"x"}`},
		{j, `{"a":{"token":"` + place + `","password":"short","secret":"a word of how it is made","api_key":"Bearer ` + place + `"}}`},
		{j, `{"a":{"page":{"token":"a-very-long-cursor"},"next_token":"a-very-long-cursor","sort_key":"creation-time"}}`},
		{j, `{"messages":[{"content":[{"input":{"token":"not-the-agents","a":[{"password":"correct-horse"}]}}]}],"tools":[{"api_key":"not-the-agents"}]}`},
		{j, `{"a":{"token":{"type":"string","default":"not-the-agents","description":"authentication"}}}`},
		{multi, part("file\"; filename=\"a.json", `{"token":"not-the-agents"}`) + part("page_token", "agents-own") + part("token", place) + part("api_key", "") + part("note", "api_key=x") + "\r\n--next--\r\nthe end"},
		{multi, part("operations", `{"query":"q","variables":{"page_token":"a-very-long-cursor"}}`) + "\r\n--next\r\n\r\n{}\r\n--next--"},
		{"text/plain", `token=x {"token":"x"}`},
	} {
		for _, step := range []int{1, 3, 1000} {
			if err := look(c, x[0], x[1], nil, step); err != nil {
				t.Errorf("%s by %d: %v", x[1], step, err)
			}
		}
	}
	if open(t, AWS, "", "AKID:"+real).Fields([]string{j}, nil, nil) != nil {
		t.Error("bodies whose digest the client signs are looked at")
	}
}

// TestFieldsAsked: whoever is asked about a field decides about its name, and about no
// other one, and the rest of the body is read as before.
func TestFieldsAsked(t *testing.T) {
	c := open(t, Bearer, "", real)
	const form, j = "application/x-www-form-urlencoded", "application/json"
	const multi = "\n--x\nContent-Disposition: form-data; name=token\n\na&api_key=1\n--x\nContent-Disposition: form-data; name="
	for _, x := range []struct{ kind, body, asked, refused string }{
		{form, "token=a%22&token=b&sort_key=1&api_key=x", "token,api_key", "api_key"},
		{j, `{"token":"a\\\"","x":1,"token":"b","auth":{"secret":"x"}}`, "token,secret", "secret"},
		{j, `{"x":{"token":"agents-\\\"own\\","y":{"token":"agents-own","password":"correct-horse"}}}`, "token,password", "password"},
		{j, `{"x":{"token":"` + strings.Repeat("x", maxWord+9) + `\"","password":"correct-horse"}}`, "token,password", "password"},
		{"multipart/form-data; boundary=x", multi + "secret\n\nx", "token,secret", "secret"},
		{"multipart/form-data; boundary=x", multi + "note\n\nb", "token", ""},
	} {
		for _, step := range []int{1, 5, 20000} {
			var asked []string
			f := c.Fields([]string{x.kind}, nil, func(name string) bool {
				asked = append(asked, name)
				return name == "token"
			})
			var err error
			for i := 0; i < len(x.body) && err == nil; i += step {
				err = f.Look([]byte(x.body[i:min(len(x.body), i+step)]))
			}
			var own *OwnError
			if got := strings.Join(asked, ","); got != x.asked || errors.As(err, &own) != (x.refused != "") || own != nil && own.Name != x.refused {
				t.Errorf("%.60s by %d: asked about %s, %v", x.body, step, got, err)
			}
		}
	}
	if c.Fields([]string{j, form}, nil, nil).Look([]byte("x")) == nil {
		t.Error("a body of two types passes")
	}
}

// TestSubprotocols: a credential among the subprotocols of a WebSocket is removed, and
// the others stay.
func TestSubprotocols(t *testing.T) {
	for _, x := range [][2]string{
		{"realtime, openai-insecure-api-key.agents-own, openai-beta.realtime-v1", "realtime, openai-beta.realtime-v1"},
		{"base64url.bearer.authorization.k8s.io.agents-own, v4.channel.k8s.io", "v4.channel.k8s.io"},
		{"bearer, agents-own", ""}, {"mqtt, Authorization ,agents-own, chat", "mqtt, chat"}, {"access_token.agents-own", ""},
		{"graphql-transport-ws, graphql-ws", "graphql-transport-ws, graphql-ws"}, {"wamp.2.json,ocpp1.6", "wamp.2.json, ocpp1.6"},
		{"key-exchange.v1", "key-exchange.v1"}, {"allowed-token.agents-own", "allowed-token.agents-own"},
	} {
		r := request(t, "https://h/", "Sec-WebSocket-Protocol", x[0], "X-Other", "token, x")
		if err := open(t, Bearer, "", real).Sign(r, Own{"allowed-token"}, nil); err != nil {
			t.Fatal(err)
		}
		if got := r.Header.Get("Sec-Websocket-Protocol"); got != x[1] || r.Header.Get("X-Other") != "token, x" {
			t.Errorf("of %s stays %s", x[0], got)
		}
	}
}
