package credential

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/carboy/carboy/internal/secret"
)

// sigv4 signs requests with AWS Signature Version 4, in place of the agent's signature
// by its placeholder. It takes region and service from the agent's signature, and the
// body's digest from the request: AWS compares it with the body.
type sigv4 struct {
	creds  aws.Credentials
	all    []secret.Value
	signer *v4.Signer
	now    func() time.Time
}

func newAWS(v secret.Value) (*sigv4, error) {
	parts := strings.SplitN(v.UnsafeString(), ":", 3)
	if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
		return nil, errors.New("the value of an aws-sigv4 credential is ID:SECRET or ID:SECRET:TOKEN")
	}
	s := &sigv4{
		creds:  aws.Credentials{AccessKeyID: parts[0], SecretAccessKey: parts[1]},
		all:    []secret.Value{secret.NewString(parts[1])},
		signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }),
		now:    time.Now,
	}
	if len(parts) == 3 {
		s.creds.SessionToken = parts[2]
		s.all = append(s.all, secret.NewString(parts[2]))
	}
	return s, nil
}

func scope() *regexp.Regexp {
	return regexp.MustCompile(`^AWS4-HMAC-SHA256 .*Credential=[^/, ]+/[0-9]{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request`)
}

const contentSHA = "X-Amz-Content-Sha256"

// emptySHA is the SHA-256 of an empty body.
const emptySHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// kept returns region and service, which the new signature contains.
func (s *sigv4) kept(was *removed) string {
	if m := scope().FindStringSubmatch(was.header.Get("Authorization")); m != nil {
		return m[1] + " " + m[2]
	}
	return ""
}

func (s *sigv4) sign(req *http.Request, was *removed) error {
	if was.query.Has("X-Amz-Signature") {
		return errors.New("requests that are signed in their URL can't be signed anew")
	}
	m := scope().FindStringSubmatch(was.header.Get("Authorization"))
	if m == nil {
		return errors.New("the request is not signed (Signature Version 4), so its region and service are not known; configure the client with the placeholder")
	}
	region, service := m[1], m[2]
	digest := req.Header.Get(contentSHA)
	switch {
	case strings.HasPrefix(digest, "STREAMING-AWS4-"):
		return errors.New("bodies that are signed piece by piece can't be signed anew; switch that off in the client")
	case digest == "" && (req.Body == nil || req.Body == http.NoBody || req.ContentLength == 0):
		digest = emptySHA
	case digest == "":
		return errors.New("the request says no digest of its body (" + contentSHA + ")")
	}
	signer := s.signer
	if service != "s3" && service != "s3express" {
		signer = v4.NewSigner()
	}
	req.Header.Del("X-Amz-Date")
	if err := signer.SignHTTP(context.Background(), s.creds, req, digest, service, region, s.now()); err != nil {
		return errors.New("the request can't be signed")
	}
	return nil
}

func (s *sigv4) secrets() []secret.Value { return s.all }
