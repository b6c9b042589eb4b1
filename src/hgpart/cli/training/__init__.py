"""Options of 'hgpart train' -> a training, by a plan or by servers, and what it came to."""
