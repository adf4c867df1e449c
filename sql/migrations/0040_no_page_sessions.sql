-- The pages of the service only show: nobody signs in to them, so there are no sessions (0031).
drop table sharequeue.page_sessions;
